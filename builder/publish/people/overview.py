"""The coverage of all planned projects on the first page: a row for each torch and CUDA, a column for each project."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from builder.matrix.axes import Cell
from builder.publish.index.entry import Entry
from builder.publish.index.levels import Level
from builder.publish.people.coverage import MISSING, cell_fields
from builder.publish.people.project_plan import ProjectPlan
from builder.untrusted.json_data import JsonError, parse_json, text

#: The states of a cell, the best first.
STATES = (*map(str, reversed(Level)), MISSING)


@dataclass(frozen=True)
class OverviewRow:
    """One torch, CUDA and platform: for each project the number of Pythons in each state."""

    torch: str
    cuda: str
    platform: str
    counts: tuple[tuple[tuple[str, int], ...], ...]


@dataclass(frozen=True)
class Overview:
    """The table: (project, version) of each column, and the rows, the newest torch first."""

    projects: tuple[tuple[str, str], ...]
    rows: tuple[OverviewRow, ...]

    @property
    def has_platforms(self) -> bool:
        """Whether the rows are of more than one platform."""
        return len({row.platform for row in self.rows}) > 1


def summary(entries: Sequence[Entry], plan: ProjectPlan) -> bytes:
    """The state of each cell of the planned version, as JSON text; `overview` reads it."""
    own = [entry for entry in entries if Version(entry.version.public) == Version(plan.version)]
    cells = {str(cell): field.state for cell, field in sorted(cell_fields(own, plan).items())}
    return (json.dumps({"version": plan.version, "cells": cells}, indent=1) + "\n").encode()


def overview(summaries: Mapping[str, bytes]) -> Overview:
    """The table of the summaries of projects."""
    states: dict[str, dict[Cell, str]] = {}
    versions: dict[str, str] = {}
    for project, page in sorted(summaries.items()):
        with suppress(JsonError):  # `publish` writes a damaged summary again
            versions[project], states[project] = parse_json(page, _read_summary)
    groups = sorted(
        {(cell.torch, cell.cuda, cell.platform) for cells in states.values() for cell in cells}, reverse=True
    )
    rows = []
    for group in groups:
        counted = [
            Counter(state for cell, state in cells.items() if (cell.torch, cell.cuda, cell.platform) == group)
            for cells in states.values()
        ]
        counts = tuple(tuple((state, count[state]) for state in STATES if count[state]) for count in counted)
        torch, cuda, platform = map(str, group)
        rows.append(OverviewRow(torch, cuda, platform, counts))
    return Overview(tuple(versions.items()), tuple(rows))


def _read_summary(data: dict[str, Any]) -> tuple[str, dict[Cell, str]]:
    return text(data["version"]), {Cell.parse(name): text(state) for name, state in data["cells"].items()}
