"""`buildfarm doctor`: reads an environment and judges it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.commands.current_environment import current_environment
from builder.commands.doctor.machine_file import read_machine
from builder.errors import UsageError
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.proofs.environment.cures import Cures
from builder.proofs.environment.facts import Environment
from builder.proofs.environment.finding import Finding
from builder.proofs.environment.judge import judge
from builder.proofs.environment.read import read_environment


@dataclass(frozen=True)
class DoctorOptions:
    """The options of one `buildfarm doctor`.

    Attributes:
        python: the Python whose environment is judged; None: the current environment.
        machine: file that describes another machine, or None for this one.
        torch_index: URL of PyTorch's index, with `{variant}`.

    """

    python: Path | None = None
    machine: Path | None = None
    torch_index: str = TORCH_INDEX


@dataclass(frozen=True)
class Diagnosis:
    """An environment and the findings about it."""

    environment: Environment
    findings: tuple[Finding, ...]


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
