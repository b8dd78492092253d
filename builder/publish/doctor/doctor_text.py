"""What `buildfarm doctor` prints, and the file for a bug report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from builder import __version__
from builder.proofs.environment.facts import Environment
from builder.proofs.environment.finding import Finding, Level
from builder.publish.terminal import to_text
from builder.untrusted.masking import mask_credentials


def doctor_text(environment: Environment, findings: Sequence[Finding]) -> str:
    """The environment in a few lines, then each finding with its cause and cure."""
    lines = [f"{name:<11}{escape(value)}" for name, value in _summary(environment)]
    for finding in findings:
        colour = "red" if finding.level is Level.FAULT else "yellow"
        lines += ["", f"[{colour}]{finding.level}:[/] {escape(finding.what)}", f"  why:  {escape(finding.why)}"]
        lines += [f"  cure: {escape(command)}" for command in finding.cure]
        lines += [f"  {'also' if finding.cure else 'cure'}: {escape(finding.advice)}"] if finding.advice else []
    faults = sum(finding.level is Level.FAULT for finding in findings)
    notes = len(findings) - faults
    total = "no fault" if not faults else "1 fault" if faults == 1 else f"{faults} faults"
    lines += ["", total + (f", {notes} note{'s' if notes > 1 else ''}" if notes else "")]
    return to_text(*map(mask_credentials, lines))


def _summary(environment: Environment) -> list[tuple[str, str]]:
    machine, tools = environment.machine, environment.tools
    gpus = ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in machine.gpus) or "none"
    torches = [f"{torch.version} ({f'CUDA {torch.cuda}' if torch.cuda else 'CPU'})" for torch in environment.torches]
    return [
        ("python", f"{environment.interpreter.python} {environment.interpreter.executable}"),
        ("machine", "described by a file" if machine.described else "this one"),
        ("driver", machine.driver or "none found"),
        ("gpu", gpus),
        ("torch", ", ".join(torches) or "none"),
        ("nvcc", f"{tools.nvcc} in {tools.home}" if tools.nvcc else "none"),
        ("compiler", tools.compiler or "none"),
    ]


def doctor_data(environment: Environment, findings: Sequence[Finding]) -> dict[str, Any]:
    """The result as plain data, without credentials and without the name of the home folder."""
    interpreter, machine, tools = environment.interpreter, environment.machine, environment.tools
    data: dict[str, Any] = {
        "buildfarm": __version__,
        "python": {
            "version": str(interpreter.python),
            "executable": str(interpreter.executable),
            "prefix": str(interpreter.prefix),
            "path": [str(folder) for folder in interpreter.path],
            "headers": interpreter.headers,
        },
        "platform": str(environment.platform),
        "machine": {
            "described": machine.described,
            "driver": machine.driver,
            "gpus": [{"name": gpu.name, "capability": str(gpu.arch)} for gpu in machine.gpus],
        },
        "tools": {"ninja": tools.ninja, "compiler": tools.compiler, "nvcc": tools.nvcc, "cuda_home": tools.home},
        "torches": [
            {"version": torch.version, "cuda": str(torch.cuda) if torch.cuda else None, "folder": str(torch.folder)}
            for torch in environment.torches
        ],
        "packages": [
            {"name": one.name, "version": one.version, "folder": str(one.folder), "installer": one.installer}
            for one in environment.packages
        ],
        "conda": dict(environment.conda),
        "variables": dict(environment.variables),
        "findings": [finding.to_json() for finding in findings],
        "faults": sum(finding.level is Level.FAULT for finding in findings),
    }
    return data


def doctor_json(environment: Environment, findings: Sequence[Finding]) -> str:
    """The result as JSON; the commands have the real paths."""
    return mask_credentials(json.dumps(doctor_data(environment, findings), indent=1)) + "\n"


def bundle(environment: Environment, findings: Sequence[Finding]) -> bytes:
    """The file for a bug report: the same JSON, with `~` for the home folder, whose name may be that of a person."""
    text = doctor_json(environment, findings)
    home = str(Path.home())
    return (text.replace(home, "~") if len(home) > 1 else text).encode()
