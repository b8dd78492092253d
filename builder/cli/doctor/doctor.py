"""`buildfarm doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import JsonOption, examples
from builder.cli.output import print_data
from builder.errors import Exit
from builder.log import print_line
from builder.matrix.config import TORCH_INDEX

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


def doctor(
    python: PythonOption = None,
    machine: MachineOption = None,
    bundle: BundleOption = None,
    torch_index: TorchIndexOption = TORCH_INDEX,
    as_json: JsonOption = False,
) -> None:
    """Judge a Python environment with torch, and print a command that mends each fault.

    No package of the environment is imported, so the environment may be broken. The exit code is 1 if a fault was
    found. Notes do not change the exit code.
    """
    from builder.commands.doctor.doctor import DoctorOptions, run_doctor  # noqa: PLC0415 - see `build`
    from builder.proofs.environment.finding import Level  # noqa: PLC0415
    from builder.publish.doctor import doctor_text  # noqa: PLC0415
    from builder.store import write_atomic  # noqa: PLC0415

    found = run_doctor(DoctorOptions(python, machine, torch_index))
    text = doctor_text.doctor_json if as_json else doctor_text.doctor_text
    print_data(text(found.environment, found.findings))
    if bundle:
        write_atomic(bundle.absolute(), doctor_text.bundle(found.environment, found.findings))
        print_line(f"wrote {bundle}")
    faults = any(finding.level is Level.FAULT for finding in found.findings)
    raise typer.Exit(int(Exit.FAILED if faults else Exit.OK))
