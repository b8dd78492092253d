"""What `publish` prints: a line for each wheel, and why wheels were refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from builder.publish.index.bar import Level
from builder.result import PublishResult

#: Reasons to print for a refused wheel; `--json` has all.
_MOST = 5


def publish_text(results: Sequence[PublishResult], place: str) -> str:
    """A line for each wheel, with the number of cells of each level; then the reasons of each refused wheel."""
    lines = []
    for result in results:
        lines.append(f"{result.outcome:<17}  {result.wheel}  {_levels(result)}".rstrip())
        lines += [f"  {reason}" for reason in result.reasons[:_MOST]]
        if len(result.reasons) > _MOST:
            lines.append(f"  and {len(result.reasons) - _MOST} more; --json prints all")
    paths = sorted({path for result in results for path in result.paths})
    if paths:
        lines += ["", f"{place} lists the published wheels under: {', '.join(f'{path}/' for path in paths)}"]
    return "\n".join(lines) + "\n"


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
