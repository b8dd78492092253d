"""Reads the description of a machine: its driver and its GPUs, for a judgement of another machine than this one."""

from __future__ import annotations

from pathlib import Path

from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator

from builder.errors import UsageError
from builder.matrix.compat import Compat
from builder.matrix.config_errors import validate
from builder.matrix.models.strict import StrictModel
from builder.matrix.yaml_document import read_document
from builder.proofs.environment.facts import Gpu, Machine
from builder.proofs.verify.gpus import gpu_named


class MachineModel(StrictModel):
    """The keys of the file."""

    driver: str = Field("", description="Version of NVIDIA's driver.")
    gpus: list[str] = Field(default_factory=list, description="Name or compute capability of each GPU.")

    @field_validator("driver")
    @classmethod
    def _is_version(cls, value: str) -> str:
        try:
            Version(value or "0")
        except InvalidVersion:
            raise ValueError(f"{value!r} is not the version of a driver; write it like 580.65.06") from None
        return value


def read_machine(path: Path, compat: Compat) -> Machine:
    """Read the file; raises UsageError for a mistake in it and for an unknown GPU."""
    document = read_document(path)
    model = validate(document, MachineModel)
    gpus = []
    for number, name in enumerate(model.gpus):
        try:
            gpus.append(Gpu(name, gpu_named(name, compat)))
        except UsageError as error:
            hint = "write its compute capability, such as 8.9"
            raise UsageError(error.sentence, where=document.where(("gpus", number)), hints=[hint]) from None
    return Machine(model.driver, tuple(gpus), described=True)
