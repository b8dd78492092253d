"""`buildfarm doctor`: reads an environment and judges it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.commands.current_environment import current_environment
from builder.errors import Exit, UsageError
from builder.log import print_line
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.matrix.config_errors import validate
from builder.matrix.models.strict import StrictModel
from builder.matrix.yaml_document import read_document
from builder.proofs.environment.cures import Cures
from builder.proofs.environment.facts import Environment, Gpu, Machine
from builder.proofs.environment.finding import Finding, Level
from builder.proofs.environment.judge import judge
from builder.proofs.environment.read import read_environment
from builder.proofs.verify.gpus import gpu_named
from builder.publish.doctor import doctor_text
from builder.store import write_atomic

EXAMPLES = examples(
    "buildfarm doctor",
    "buildfarm doctor --python .venv/bin/python --bundle report.json",
    "buildfarm doctor --machine gpu-server.yaml",
)

PythonOption = Annotated[
    Path | None,
    typer.Option(
        "--python", metavar="PATH", help="Python whose environment is judged. Default: that of the active environment."
    ),
]
MachineOption = Annotated[
    Path | None,
    typer.Option(
        "--machine", metavar="FILE", help="Judge for the driver and the GPUs that FILE describes, not for this machine."
    ),
]
BundleOption = Annotated[
    Path | None,
    typer.Option("--bundle", metavar="FILE", help="Also write versions and findings to FILE, for a bug report."),
]
TorchIndexOption = Annotated[
    str,
    typer.Option("--torch-index", metavar="URL", help="Index of torch's CUDA variants that the cures name."),
]


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `buildfarm doctor`."""

    python: PythonOption = None
    machine: MachineOption = None
    bundle: BundleOption = None
    torch_index: TorchIndexOption = TORCH_INDEX
    as_json: JsonOption = False


@dataclass(frozen=True)
class Diagnosis:
    """An environment and the findings about it."""

    environment: Environment
    findings: tuple[Finding, ...]


def doctor(options: DoctorOptions) -> None:
    """Judge a Python environment with torch, and print a command that mends each fault.

    No package of the environment is imported, so the environment may be broken. The exit code is 1 if a fault was
    found. Notes do not change the exit code.
    """
    found = run_doctor(options)
    text = doctor_text.doctor_json if options.as_json else doctor_text.doctor_text
    print_data(text(found.environment, found.findings))
    if options.bundle:
        write_atomic(options.bundle.absolute(), doctor_text.bundle(found.environment, found.findings))
        print_line(f"wrote {options.bundle}")
    faults = any(finding.level is Level.FAULT for finding in found.findings)
    raise typer.Exit(int(Exit.FAILED if faults else Exit.OK))


def run_doctor(options: DoctorOptions) -> Diagnosis:
    """Judge an environment.

    Raises UsageError for a Python that does not run, for a wrong machine file, and if no environment is named and the
    environment of buildfarm has no torch.
    """
    compat = Compat.load()
    machine = read_machine(options.machine, compat) if options.machine else None
    current = current_environment()
    environment = read_environment(options.python or current.interpreter, machine)
    if not options.python and current.of_buildfarm and environment.torch is None:
        raise UsageError(
            f"no environment is active, and the environment of buildfarm has no torch ({current.prefix})",
            hints=["activate the environment to judge, or name its Python: `buildfarm doctor --python env/bin/python`"],
        )
    return Diagnosis(environment, judge(Cures(environment, compat, options.torch_index)))


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
