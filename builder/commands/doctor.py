"""`buildfarm doctor`: reads an environment and judges it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from builder import __version__
from builder.cli.options import check_driver
from builder.commands.axes import current_environment
from builder.errors import Code, Exit, UsageError, mask_credentials
from builder.gate.amounts import counted
from builder.log import print_result
from builder.matrix.axes import Gpu
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.option import option
from builder.proofs.environment import package_checks, torch_checks
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import InstalledEnvironment, Machine, TorchInstall, read_environment
from builder.publish.terminal import to_text

#: The checks, in the order in which a person should mend what they find; each takes the torch that Python imports.
_CHECKS: tuple[Callable[[Cures, TorchInstall], Iterator[Finding]], ...] = (
    torch_checks.check_path,
    torch_checks.check_records,
    torch_checks.check_installers,
    torch_checks.check_requirements,
    torch_checks.check_files,
    torch_checks.check_backends,
    torch_checks.check_leftovers,
    torch_checks.check_uv,
    torch_checks.check_gpus,
    package_checks.check_companions,
    package_checks.check_nvidia,
    torch_checks.check_library_path,
    package_checks.check_extensions,
)


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `buildfarm doctor`."""

    python: Path | None = option("Python whose environment is judged. Default: that of the active environment.", "PATH")
    gpu: list[str] | None = option(
        "Judge for this GPU, not for those of this machine: its name (RTX 4090), 8.9 or sm_89. Repeatable.", "GPU"
    )
    driver: str = option("NVIDIA driver of another machine: 550 or 550.54.14.", "VERSION", default="")
    torch_index: str = option("Index of torch's CUDA variants that the cures name.", "URL", default=TORCH_INDEX)
    as_json: bool = False


def doctor(options: DoctorOptions) -> Exit:
    """Judge a Python environment with torch, and print a command that mends each fault.

    No package of the environment is imported, so the environment may be broken. The exit code is 1 if a fault was
    found. Notes do not change the exit code.

    Examples:
        buildfarm doctor
        buildfarm doctor --python .venv/bin/python --json > report.json
        buildfarm doctor --gpu "RTX 5090" --driver 580
    """
    compat = Compat.load()
    check_driver(options.driver)
    gpus, machine = tuple(Gpu(text, compat.gpu_named(text)) for text in options.gpu or ()), None
    if gpus or options.driver:
        machine = Machine(options.driver, gpus, described=True)
    current = current_environment()
    environment = read_environment(options.python or current.interpreter, machine)
    if not options.python and current.of_buildfarm and environment.torch is None:
        sentence = f"no environment is active, and the environment of buildfarm has no torch ({current.prefix})"
        hint = "activate the environment to judge, or name its Python: `buildfarm doctor --python env/bin/python`"
        raise UsageError(sentence, Code.NO_ENVIRONMENT, hints=[hint])
    findings = judge(Cures(environment, compat, options.torch_index))
    print_result(doctor_text(environment, findings), _data(environment, findings), as_json=options.as_json)
    faults = any(finding.level is Severity.FAULT for finding in findings)
    return Exit.FAILED if faults else Exit.OK


def judge(cures: Cures) -> tuple[Finding, ...]:
    """The findings about an environment: faults first, then notes; both in the order of the checks."""
    torch = cures.environment.torch
    found = [one for check in _CHECKS for one in check(cures, torch)] if torch else [torch_checks.no_torch(cures)]
    found += package_checks.check_safe_versions(cures)
    return tuple(sorted(found, key=lambda one: one.level is Severity.NOTE))


def doctor_text(environment: InstalledEnvironment, findings: Sequence[Finding]) -> str:
    """The environment in a few lines, then each finding with its cause and cure."""
    machine = environment.machine
    gpus = ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in machine.gpus)
    torches = [f"{torch.version} ({f'CUDA {torch.cuda}' if torch.cuda else 'CPU'})" for torch in environment.torches]
    summary = {
        "python": f"{environment.interpreter.python} {environment.interpreter.executable}",
        "machine": "described by the options" if machine.described else "this one",
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
    faults = sum(finding.level is Severity.FAULT for finding in findings)
    notes = len(findings) - faults
    total = counted(faults, "fault") if faults else "no fault"
    lines += ["", total + (f", {counted(notes, 'note')}" if notes else "")]
    return to_text(*map(mask_credentials, lines))


def _data(environment: InstalledEnvironment, findings: Sequence[Finding]) -> dict[str, Any]:
    """The result for `--json`."""
    interpreter, machine = environment.interpreter, environment.machine
    return {
        "buildfarm": __version__,
        "python": {
            "version": interpreter.python,
            "executable": interpreter.executable,
            "prefix": interpreter.prefix,
            "path": interpreter.path,
        },
        "platform": environment.platform,
        "machine": {
            "described": machine.described,
            "driver": machine.driver,
            "gpus": [{"name": gpu.name, "capability": gpu.arch} for gpu in machine.gpus],
        },
        "nvcc": environment.nvcc,
        "torches": [{"version": one.version, "cuda": one.cuda, "folder": one.folder} for one in environment.torches],
        "packages": [
            {"name": one.name, "version": one.version, "folder": one.folder, "installer": one.installer}
            for one in environment.packages
        ],
        "conda": dict(environment.conda),
        "variables": dict(environment.variables),
        "findings": [asdict(finding) for finding in findings],
        "faults": sum(finding.level is Severity.FAULT for finding in findings),
    }
