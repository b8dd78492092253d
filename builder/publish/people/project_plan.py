"""What a matrix plans for one project: the cells that get a wheel, and the reasons of those that get none."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.matrix.axes import Cell
from builder.matrix.plan import Build, Plan
from builder.publish.index.entry import Entry
from builder.untrusted.json_data import parse_json, texts
from builder.wheelfile.compatibility import admits


@dataclass(frozen=True)
class ProjectPlan:
    """The plan of one project."""

    #: The version that is planned, without a local part.
    version: str
    #: The cells of each planned local version, such as `cu130.torch211`.
    wheels: dict[str, tuple[Cell, ...]]
    #: The combinations that get no wheel, as names of cells, by reason.
    skipped: dict[str, tuple[Cell, ...]]
    #: The normalized names of all projects of the same matrix, sorted.
    projects: tuple[str, ...]

    def serves(self, entry: Entry, cell: Cell) -> bool:
        """Whether a wheel is the one that is planned for a cell, by its version and its tags."""
        versions = {Version(f"{self.version}+{local}") for local, cells in self.wheels.items() if cell in cells}
        machine = cell.platform.removeprefix("linux_")
        tags = parse_wheel_filename(entry.filename)[3]
        return entry.version in versions and any(admits(tag, cell.python, machine) for tag in tags)

    @property
    def cells(self) -> list[Cell]:
        """The cells that get a wheel."""
        return [cell for cells in self.wheels.values() for cell in cells]

    def to_json(self) -> bytes:
        """Return JSON text; `from_json` reads it."""
        data = {
            "version": self.version,
            "wheels": {local: [str(cell) for cell in cells] for local, cells in self.wheels.items()},
            "skipped": {reason: [str(cell) for cell in cells] for reason, cells in self.skipped.items()},
            "projects": self.projects,
        }
        return (json.dumps(data, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what `to_json` wrote; raises JsonError for anything else."""
        return parse_json(text, cls._of)

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        wheels, skipped = (
            {str(key): tuple(map(Cell.parse, texts(cells))) for key, cells in data[name].items()}
            for name in ("wheels", "skipped")
        )
        return cls(str(Version(data["version"])), wheels, skipped, texts(data["projects"]))


def project_plans(plan: Plan) -> dict[str, ProjectPlan]:
    """The plan of each project that has builds, by its normalized name."""
    builds: dict[str, list[Build]] = defaultdict(list)
    for build in plan.builds:
        builds[build.wheel_name].append(build)
    projects = tuple(sorted(canonicalize_name(name) for name in builds))
    return {
        canonicalize_name(name): ProjectPlan(own[0].version, _wheels(own), _skipped(plan, own[0].extension), projects)
        for name, own in builds.items()
    }


def _wheels(builds: Sequence[Build]) -> dict[str, tuple[Cell, ...]]:
    wheels: dict[str, list[Cell]] = defaultdict(list)
    for build in builds:
        wheels[build.local_version] += build.serves
    return {local: tuple(sorted(cells)) for local, cells in wheels.items()}


def _skipped(plan: Plan, extension: str) -> dict[str, tuple[Cell, ...]]:
    skipped: dict[str, list[Cell]] = defaultdict(list)
    for skip in plan.skips:
        if skip.extension in {"", extension}:
            skipped[skip.reason].append(Cell(skip.torch, skip.cuda, skip.python, skip.platform))
    return {reason: tuple(cells) for reason, cells in skipped.items()}
