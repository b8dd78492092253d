"""What `publish` prints: a line for each wheel, and why wheels were refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.version import Version

from builder.matrix.axes import Cell
from builder.publish.index.bar import Level
from builder.publish.index.text.install import commands_of_cells, install_commands, install_lines
from builder.result import PublishOutcome, PublishResult

#: Reasons to print for a refused wheel; `--json` has all.
_MOST = 5

_OLDER = (
    "These are the results of the last `buildfarm build` or `smoke`. After a change of cases.py, run the same"
    " `buildfarm build` command again: it tests the wheel again and does not compile."
)
_UNTESTED = "To test a wheel that somebody else built, and publish it, run `buildfarm adopt WHEEL --to INDEX`."
_NO_GPU = (
    "Ops without a CPU kernel need a GPU. Add CPU kernels, or test the wheel on a GPU machine (`buildfarm smoke"
    " --pack`) and publish with `--require gpu`, or publish without results of these ops with `--require static`."
)


def publish_text(results: Sequence[PublishResult], index: str, required: Sequence[Level] | None) -> str:
    """A line for each wheel, with the number of cells of each level; reasons; commands that install from the index.

    `index` is the URL of its root for pip and uv; empty for an index in a bucket, which they read through a web server.
    Without `required`, the text does not mention levels.
    """
    lines = list(_result_lines(results))
    low = [result for result in results if result.outcome is PublishOutcome.REFUSED and result.below_level]
    if required is not None and low:
        reasons = [reason for result in low for reason in result.reasons]
        wanted = " and ".join(map(str, required))
        lines += [
            "",
            f"Each cell must reach {wanted}; --require sets a lower level. `buildfarm publish --help` explains it.",
            _NO_GPU if any("no GPU" in reason for reason in reasons) else _OLDER,
            *([_UNTESTED] if any("there is no proof" in reason for reason in reasons) else []),
        ]
    if not index:
        lines += ["", "pip and uv read a bucket through a web server: docs/how-to/object-stores.md"]
    elif commands := _install_commands(results, index):
        cells = [Cell.parse(cell) for result in results if result.paths for cell in result.cells]
        lines += ["", *(install_lines(cells, commands) if cells else ["To install:", *commands])]
    return "\n".join(lines) + "\n"


def _result_lines(results: Sequence[PublishResult]) -> Iterator[str]:
    """A line for each wheel, with the number of cells of each level, and the reasons of refused wheels."""
    for result in results:
        yield f"{result.outcome:<17}  {result.wheel}  {_levels(result)}".rstrip()
        yield from (f"  {note}" for note in result.notes)
        yield from (f"  {reason}" for reason in result.reasons[:_MOST])
        if len(result.reasons) > _MOST:
            yield f"  and {len(result.reasons) - _MOST} more; --json prints all"


def _install_commands(results: Sequence[PublishResult], root: str) -> list[str]:
    """The commands of pip and uv for the newest version of each project, from the path of its newest CUDA variant."""
    commands: dict[str, None] = {}
    published = [result for result in results if result.paths]
    newest: dict[str, Version] = {}
    for result in published:
        name, version = _identity(result)
        newest[name] = max(newest.get(name, version), version)
    for result in published:
        name, version = _identity(result)
        if version == newest[name]:
            text = str(Version(result.wheel.split("-")[1]))
            path = max(result.paths[1:] or result.paths, key=lambda one: (len(one), one))
            index, cells = f"{root}{path}/", [Cell.parse(cell) for cell in result.cells]
            made = commands_of_cells(index, name, text, cells) if cells else install_commands(index, name, text, [])
            commands |= dict.fromkeys(made)
    return list(commands)


def _identity(result: PublishResult) -> tuple[str, Version]:
    """The project of a wheel and the public part of its version."""
    name, version = result.wheel.split("-")[:2]
    return name, Version(Version(version).public)


def publish_json(results: Sequence[PublishResult]) -> str:
    """Everything about each wheel."""
    return json.dumps([publish_data(result) for result in results], indent=1) + "\n"


def publish_data(result: PublishResult) -> dict[str, Any]:
    """Everything about one wheel, as plain data."""
    return {
        "wheel": result.wheel,
        "outcome": str(result.outcome),
        "cells": result.cells,
        "paths": list(result.paths),
        "reasons": list(result.reasons),
    }


def _levels(result: PublishResult) -> str:
    """`3 cells: cpu; 1 cell: static`, the highest level first."""
    count = Counter(result.cells.values())
    shown = [level for level in reversed(Level) if count[level]]
    return "; ".join(f"{count[level]} cell{'s' * (count[level] > 1)}: {level}" for level in shown)
