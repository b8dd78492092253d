"""What a matrix plans for each project: the cells that get a wheel, and the reasons of those that get none."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.matrix.axes import Cell
from builder.matrix.local_version import current_form
from builder.matrix.plan import Build, Plan
from builder.publish.index.entry import Entry
from builder.publish.index.objects import Objects
from builder.untrusted import JsonError, parse_json, texts

#: The folder of an index with the plan of each project.
PLANS = "plans"


@dataclass(frozen=True)
class ProjectPlan:
    """The plan of one project."""

    #: The version that is planned, without a local part.
    version: str
    #: The cells of each planned local version, such as `cu130.torch2.11`.
    wheels: dict[str, tuple[Cell, ...]]
    #: The combinations that get no wheel, as names of cells, by reason.
    skipped: dict[str, tuple[Cell, ...]]
    #: The normalized names of all projects of the same matrix, sorted.
    projects: tuple[str, ...]

    def serves(self, entry: Entry, cell: Cell) -> bool:
        """Whether a wheel is the one that is planned for a cell, by its version and its tags."""
        planned = (f"{self.version}+{local}" for local, cells in self.wheels.items() if cell in cells)
        versions = {Version(current_form(version)) for version in planned}
        is_version = Version(current_form(str(entry.version))) in versions
        return is_version and bool(entry.tags_for(cell))

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
    projects = tuple(sorted(map(canonicalize_name, builds)))
    return {canonicalize_name(name): _project_plan(plan, own, projects) for name, own in builds.items()}


def _project_plan(plan: Plan, own: Sequence[Build], projects: tuple[str, ...]) -> ProjectPlan:
    wheels: dict[str, list[Cell]] = defaultdict(list)
    for build in own:
        wheels[build.local_version] += build.serves
    skipped: dict[str, list[Cell]] = defaultdict(list)
    for skip in plan.skips:
        if skip.extension in {"", own[0].extension}:
            skipped[skip.reason].append(Cell(skip.torch, skip.cuda, skip.python, skip.platform))
    return ProjectPlan(
        own[0].version,
        {local: tuple(sorted(cells)) for local, cells in wheels.items()},
        {reason: tuple(cells) for reason, cells in skipped.items()},
        projects,
    )


def read_plan(objects: Objects, project: str) -> ProjectPlan | None:
    """What a matrix plans for a project; None without a readable plan."""
    try:
        return ProjectPlan.from_json(objects.read(f"{PLANS}/{project}"))
    except (FileNotFoundError, JsonError):
        return None
