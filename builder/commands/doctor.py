"""`buildfarm doctor`: reads an environment and judges it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator
from rich.markup import escape

from builder import __version__
from builder.cli.options import JsonOption
from builder.cli.output import print_data
from builder.commands.current_environment import current_environment
from builder.errors import Code, Exit, UsageError
from builder.gate.amounts import counted
from builder.masking import mask_credentials
from builder.matrix.axes import Gpu
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.matrix.fields import StrictModel
from builder.matrix.yaml_document import read_document, validate
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import InstalledEnvironment, Machine, read_environment
from builder.proofs.environment.judge import judge
from builder.proofs.verify.gpus import gpu_named
from builder.publish.terminal import to_text


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `buildfarm doctor`."""

    python: Annotated[
        Path | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Python whose environment is judged. Default: that of the active environment.",
        ),
    ] = None
    machine: Annotated[
        Path | None,
        typer.Option(
            "--machine",
            metavar="FILE",
            help="Judge for the driver and the GPUs that FILE describes, not for this machine.",
        ),
    ] = None
    torch_index: Annotated[
        str,
        typer.Option("--torch-index", metavar="URL", help="Index of torch's CUDA variants that the cures name."),
    ] = TORCH_INDEX
    as_json: JsonOption = False


def doctor(options: DoctorOptions) -> None:
    """Judge a Python environment with torch, and print a command that mends each fault.

    No package of the environment is imported, so the environment may be broken. The exit code is 1 if a fault was
    found. Notes do not change the exit code.

    Examples:
        buildfarm doctor
        buildfarm doctor --python .venv/bin/python --json
        buildfarm doctor --machine gpu-server.yaml
    """
    compat = Compat.load()
    machine = _read_machine(options.machine, compat) if options.machine else None
    current = current_environment()
    environment = read_environment(options.python or current.interpreter, machine)
    if not options.python and current.of_buildfarm and environment.torch is None:
        raise UsageError(
            f"no environment is active, and the environment of buildfarm has no torch ({current.prefix})",
            Code.NO_ENVIRONMENT,
            hints=["activate the environment to judge, or name its Python: `buildfarm doctor --python env/bin/python`"],
        )
    findings = judge(Cures(environment, compat, options.torch_index))
    print_data((_json if options.as_json else doctor_text)(environment, findings))
    faults = any(finding.level is Severity.FAULT for finding in findings)
    raise typer.Exit(int(Exit.FAILED if faults else Exit.OK))


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


def _read_machine(path: Path, compat: Compat) -> Machine:
    """Read the file; raises UsageError for a mistake in it and for an unknown GPU."""
    document = read_document(path)
    model = validate(document, MachineModel)
    gpus = []
    for number, name in enumerate(model.gpus):
        try:
            gpus.append(Gpu(name, gpu_named(name, compat)))
        except UsageError as error:
            hint = "write its compute capability, such as 8.9"
            raise UsageError(error.sentence, error.code, where=document.where(("gpus", number)), hints=[hint]) from None
    return Machine(model.driver, tuple(gpus), described=True)


_MANAGED = (
    "the system manages the packages of this Python, and installers refuse to change them: first make a virtual"
    " environment, such as `python3 -m venv env`, install there, and run `buildfarm doctor --python env/bin/python`"
)


def doctor_text(environment: InstalledEnvironment, findings: Sequence[Finding]) -> str:
    """The environment in a few lines, then each finding with its cause and cure."""
    machine = environment.machine
    gpus = ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in machine.gpus)
    torches = [f"{torch.version} ({f'CUDA {torch.cuda}' if torch.cuda else 'CPU'})" for torch in environment.torches]
    summary = {
        "python": f"{environment.interpreter.python} {environment.interpreter.executable}",
        "machine": "described by a file" if machine.described else "this one",
        "driver": machine.driver or "none found",
        "gpu": gpus or "none",
        "torch": ", ".join(torches) or "none",
        "nvcc": environment.nvcc or "none",
    }
    lines = [f"{name:<11}{escape(value)}" for name, value in summary.items()]
    shown = set[tuple[str, ...]]()
    for finding in findings:
        colour = "red" if finding.level is Severity.FAULT else "yellow"
        lines += ["", f"[{colour}]{finding.level}:[/] {escape(finding.what)}", f"  why:  {escape(finding.why)}"]
        commands = ("the same as above",) if finding.cure in shown else finding.cure
        lines += [f"  cure: {escape(command)}" for command in commands]
        shown |= {finding.cure} - {()}
        lines += [f"  {'also' if finding.cure else 'cure'}: {escape(finding.advice)}"] if finding.advice else []
    if environment.interpreter.managed and any(finding.cure for finding in findings):
        lines += ["", f"[yellow]note:[/] {_MANAGED}"]
    faults = sum(finding.level is Severity.FAULT for finding in findings)
    notes = len(findings) - faults
    total = "no fault" if not faults else "1 fault" if faults == 1 else f"{faults} faults"
    lines += ["", total + (f", {counted(notes, 'note')}" if notes else "")]
    return to_text(*map(mask_credentials, lines))


def _json(environment: InstalledEnvironment, findings: Sequence[Finding]) -> str:
    """The result as JSON without credentials; the commands have the real paths."""
    interpreter, machine = environment.interpreter, environment.machine
    data = {
        "buildfarm": __version__,
        "python": {
            "version": str(interpreter.python),
            "executable": str(interpreter.executable),
            "prefix": str(interpreter.prefix),
            "path": [str(folder) for folder in interpreter.path],
        },
        "platform": str(environment.platform),
        "machine": {
            "described": machine.described,
            "driver": machine.driver,
            "gpus": [{"name": gpu.name, "capability": str(gpu.arch)} for gpu in machine.gpus],
        },
        "nvcc": environment.nvcc,
        "torches": [
            {"version": torch.version, "cuda": str(torch.cuda) if torch.cuda else None, "folder": str(torch.folder)}
            for torch in environment.torches
        ],
        "packages": [
            {"name": one.name, "version": one.version, "folder": str(one.folder), "installer": one.installer}
            for one in environment.packages
        ],
        "variables": dict(environment.variables),
        "findings": [asdict(finding) for finding in findings],
        "faults": sum(finding.level is Severity.FAULT for finding in findings),
    }
    return mask_credentials(json.dumps(data, indent=1)) + "\n"
