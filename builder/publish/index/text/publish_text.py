"""What `publish` prints: a line for each wheel, and why wheels were refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from builder.publish.index.bar import Level
from builder.publish.index.text.install import install_commands
from builder.result import PublishOutcome, PublishResult

#: Reasons to print for a refused wheel; `--json` has all.
_MOST = 5


def publish_text(results: Sequence[PublishResult], place: Path, required: Sequence[Level]) -> str:
    """A line for each wheel, with the number of cells of each level; reasons; commands that install."""
    lines = []
    for result in results:
        lines.append(f"{result.outcome:<17}  {result.wheel}  {_levels(result)}".rstrip())
        lines += [f"  {reason}" for reason in result.reasons[:_MOST]]
        if len(result.reasons) > _MOST:
            lines.append(f"  and {len(result.reasons) - _MOST} more; --json prints all")
    if any(result.outcome is PublishOutcome.REFUSED for result in results):
        wanted = " and ".join(map(str, required))
        lines += [
            "",
            f"Each cell must reach {wanted}; --require sets a lower level. `buildfarm publish --help` explains it.",
        ]
    if commands := _install_commands(results, place):
        lines += ["", "To install, in an environment with torch:", *(f"  {command}" for command in commands)]
    return "\n".join(lines) + "\n"


def _install_commands(results: Sequence[PublishResult], place: Path) -> list[str]:
    """The commands of pip and uv for each published version, from the path of its newest CUDA variant."""
    commands: dict[str, None] = {}
    for result in results:
        if result.paths:
            name, version = result.wheel.split("-")[:2]
            path = max(result.paths[1:] or result.paths, key=lambda one: (len(one), one))
            commands |= dict.fromkeys(install_commands(f"{place.resolve().as_uri()}/{path}/", name, version, []))
    return list(commands)


def publish_json(results: Sequence[PublishResult]) -> str:
    """Everything about each wheel."""
    data = [
        {
            "wheel": result.wheel,
            "outcome": str(result.outcome),
            "cells": result.cells,
            "paths": list(result.paths),
            "reasons": list(result.reasons),
        }
        for result in results
    ]
    return json.dumps(data, indent=1) + "\n"


def _levels(result: PublishResult) -> str:
    """`3 cells: cpu; 1 cell: static`, the highest level first."""
    count = Counter(result.cells.values())
    shown = [level for level in reversed(Level) if count[level]]
    return "; ".join(f"{count[level]} cell{'s' * (count[level] > 1)}: {level}" for level in shown)
