"""What the page of a project shows: what a matrix plans, and what is known of each cell; how to install, the wheels."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.matrix.axes import Cell, Python
from builder.matrix.local_version import current_form
from builder.matrix.plan import Build, Plan
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.install import wheel_url
from builder.publish.index.levels import Level
from builder.publish.index.objects import Objects
from builder.publish.index.paths import ALL, path_to_install
from builder.untrusted import JsonError, parse_json, texts

#: The folder of an index with the plan of each project.
PLANS = "plans"
#: The states of a cell beside the levels: planned without a wheel, and not planned for a reason.
MISSING, SKIPPED = "missing", "skipped"
_LEVELS = [str(level) for level in Level]


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
    plans: dict[str, ProjectPlan] = {}
    for name, own in builds.items():
        wheels: dict[str, list[Cell]] = defaultdict(list)
        for build in own:
            wheels[build.local_version] += build.serves
        skipped: dict[str, list[Cell]] = defaultdict(list)
        for skip in plan.skips:
            if skip.extension in {"", own[0].extension}:
                skipped[skip.reason].append(Cell(skip.torch, skip.cuda, skip.python, skip.platform))
        plans[canonicalize_name(name)] = ProjectPlan(
            own[0].version,
            {local: tuple(sorted(cells)) for local, cells in wheels.items()},
            {reason: tuple(cells) for reason, cells in skipped.items()},
            projects,
        )
    return plans


def read_plan(objects: Objects, project: str) -> ProjectPlan | None:
    """What a matrix plans for a project; None without a readable plan."""
    try:
        return ProjectPlan.from_json(objects.read(f"{PLANS}/{project}"))
    except (FileNotFoundError, JsonError):
        return None


@dataclass(frozen=True)
class Field:
    """One cell in the table."""

    #: A level, `missing` or `skipped`; empty: neither tested nor planned.
    state: str = ""
    #: Path of the proofs of the wheel that reached the level, or "".
    proofs: str = ""
    #: Number of the reason of a skipped cell, from 1; else 0.
    reason: int = 0
    #: The GPU models on which every op was checked.
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One torch, CUDA and platform: a field for each Python of the table."""

    torch: str
    cuda: str
    platform: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Grid:
    """The table of cells: a column for each of `pythons`, and `rows` with the newest torch first."""

    pythons: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def has_platforms(self) -> bool:
        """Whether the rows are of more than one platform."""
        return len({row.platform for row in self.rows}) > 1


class Install(NamedTuple):
    """A version to install: for which torch and CUDA as text, the path of the index, and the version.

    `wheels` are file names and URLs from the root of the index, if the version has no local part: see
    `install_commands`.
    """

    target: str
    path: str
    version: str
    wheels: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class VersionCoverage:
    """One public version."""

    #: Without a local part.
    version: Version
    #: The table.
    grid: Grid
    #: Why combinations get no wheel, with each torch and CUDA and its Pythons as text; those of the table come first.
    reasons: Mapping[str, Sequence[tuple[str, str]]]
    #: The newest CUDA and torch first.
    installs: Sequence[Install]
    #: By file name.
    wheels: Sequence[Entry]
    #: Whether the matrix plans this version.
    planned: bool


def coverage(entries: Sequence[Entry], plan: ProjectPlan | None = None) -> list[VersionCoverage]:
    """The versions of a project, stable ones first, then the newest; with a plan, also that version without a wheel."""
    by_version: dict[Version, list[Entry]] = {Version(plan.version): []} if plan else {}
    for entry in entries:
        by_version.setdefault(Version(entry.version.public), []).append(entry)
    return [
        _version(version, by_version[version], plan if plan and Version(plan.version) == version else None)
        for version in sorted(by_version, key=lambda one: (not one.is_prerelease, one), reverse=True)
    ]


def cell_fields(entries: Iterable[Entry], plan: ProjectPlan | None) -> dict[Cell, Field]:
    """What is known of each tested and planned cell; wheels that are yanked do not count."""
    found: dict[Cell, Field] = {}
    offered = [entry for entry in entries if entry.yanked is None]
    for entry in offered:
        farm = entry.farm or FarmFacts()
        for cell in entry.cells:
            level = farm.cells[str(cell)]
            if cell not in found or _LEVELS.index(level) > _LEVELS.index(found[cell].state):
                found[cell] = Field(level, farm.proofs, gpus=farm.gpus.get(str(cell), ()))
    for cell in plan.cells if plan else ():
        if cell not in found:
            there = plan is not None and any(plan.serves(entry, cell) for entry in offered)
            found[cell] = Field(Level.NONE if there else MISSING)
    return found


def grid_of(fields: Mapping[Cell, Field], other: Callable[[Cell], Field]) -> Grid:
    """The table with these fields, and with `other` of each cell between them that has none."""
    pythons = sorted({cell.python for cell in fields})
    rows = []
    for torch, cuda, platform in sorted({(cell.torch, cell.cuda, cell.platform) for cell in fields}, reverse=True):
        cells = [Cell(torch, cuda, python, platform) for python in pythons]
        row = tuple(fields[cell] if cell in fields else other(cell) for cell in cells)
        rows.append(Row(str(torch), str(cuda), str(platform), row))
    return Grid(tuple(map(str, pythons)), tuple(rows))


def _version(version: Version, entries: Sequence[Entry], plan: ProjectPlan | None) -> VersionCoverage:
    numbers: dict[str, int] = {}
    skipped = plan.skipped if plan else {}
    why = {cell: reason for reason, cells in skipped.items() for cell in cells}

    def other(cell: Cell) -> Field:
        return Field(SKIPPED, reason=numbers.setdefault(why[cell], len(numbers) + 1)) if cell in why else Field()

    grid = grid_of(cell_fields(entries, plan), other)
    reasons = {reason: _combinations(skipped[reason]) for reason in dict.fromkeys([*numbers, *why.values()])}
    wheels = sorted(entries, key=lambda entry: entry.filename)
    return VersionCoverage(version, grid, reasons, _installs(wheels), wheels, plan is not None)


def _combinations(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """The Pythons of each torch and CUDA, as text."""
    pythons: dict[str, set[Python]] = defaultdict(set)
    for cell in cells:
        pythons[f"torch {cell.torch}, CUDA {cell.cuda}"].add(cell.python)
    return [(pair, ", ".join(map(str, sorted(found)))) for pair, found in pythons.items()]


def _installs(entries: Sequence[Entry]) -> list[Install]:
    """What to install from which path of the index; several wheels of one version are one line."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    unknown = {str(entry.version) for entry in entries if entry.farm and entry.farm.cuda_unknown}
    wheels: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for entry in entries:
        if entry.yanked is None:
            if not entry.version.local:
                wheels[str(entry.version)].append((entry.filename, wheel_url("", entry.path, entry.sha256)))
            for variant in (entry.farm.cuda if entry.farm else ()) or (ALL,):
                path = path_to_install(entry, variant) if variant != ALL else ALL
                known = cells.setdefault((path, str(entry.version)), [])
                known += [cell for cell in entry.cells if variant in {cell.cuda.variant, ALL}]

    def rank(key: tuple[str, str]) -> tuple[object, ...]:
        found = cells[key]
        return (bool(found), *((max(c.cuda for c in found), max(c.torch for c in found)) if found else key), *key)

    return [
        Install(_target(path, cells[path, version], unknown=version in unknown), path, version, wheels[version])
        for path, version in sorted(cells, key=rank, reverse=True)
    ]


def _target(path: str, cells: Sequence[Cell], *, unknown: bool) -> str:
    """For which CUDA and torch the wheels of a path are, as far as they were tested."""
    variants = sorted({cell.cuda for cell in cells}, reverse=True)
    torches = sorted({cell.torch for cell in cells})
    if not torches:
        every = "Not tested, and for which CUDA is unknown" if unknown else "Every CUDA"
        return every if path == ALL else path
    between = f"{torches[0]} to {torches[-1]}" if len(torches) > 1 else f"{torches[0]}"
    return f"CUDA {', '.join(map(str, variants))} with torch {between}"
