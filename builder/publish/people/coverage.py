"""What a project's page shows: for each version, what is known of each cell, how to install, and the wheels."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.gate.amounts import size_text
from builder.matrix.axes import Cell, Python
from builder.matrix.local_version import current_form
from builder.matrix.plan import Build, Plan
from builder.publish.gradients import gradient_text
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.install import wheel_url
from builder.publish.index.levels import Level
from builder.publish.index.paths import ALL, path_to_install
from builder.untrusted import parse_json, split_url, texts

# What a matrix plans for one project: the cells that get a wheel, and the reasons of those that get none.


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


#: From the page of a project to the root of the index.
ROOT = "../../"
#: The states of a cell beside the levels: planned without a wheel, and not planned for a reason.
MISSING, SKIPPED = "missing", "skipped"
_LEVELS = [str(level) for level in Level]


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


@dataclass(frozen=True)
class Reason:
    """Why combinations get no wheel; each of `combinations` is a torch and CUDA with its Pythons as text."""

    sentence: str
    combinations: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Install:
    """A version to install: for which torch and CUDA as text, the path of the index, and the version.

    `wheels` are file names and URLs from the root of the index, if the version has no local part: see
    `install_commands`.
    """

    target: str
    path: str
    version: str
    wheels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class WheelLine:
    """One wheel: its file name, links, and facts as text; `cells` are the names of the cells it was tested in.

    `origin` is where an adopted wheel came from: a name and a URL, which may be empty; None for other wheels.
    `gradients` says which ops have one.
    """

    filename: str
    path: str
    size: str
    uploaded: str
    gpu_code: str
    yanked: str | None
    cells: tuple[str, ...]
    evidence: tuple[tuple[str, str], ...]
    origin: tuple[str, str] | None = None
    gradients: str = ""


@dataclass(frozen=True)
class VersionCoverage:
    """One public version."""

    #: Without a local part.
    version: str
    #: The table.
    grid: Grid
    #: Why combinations get no wheel; those that the table refers to come first.
    reasons: tuple[Reason, ...]
    #: The newest CUDA and torch first.
    installs: tuple[Install, ...]
    #: By file name.
    wheels: tuple[WheelLine, ...]
    #: Whether the matrix plans this version.
    planned: bool

    @property
    def is_prerelease(self) -> bool:
        """Whether this is a pre-release."""
        return Version(self.version).is_prerelease

    @property
    def all_yanked(self) -> bool:
        """Whether every wheel is yanked."""
        return all(wheel.yanked is not None for wheel in self.wheels)


def coverage(entries: Sequence[Entry], plan: ProjectPlan | None = None) -> list[VersionCoverage]:
    """The versions of a project, stable ones first, then the newest; with a plan, also that version without a wheel."""
    by_version: dict[Version, list[Entry]] = {Version(plan.version): []} if plan else {}
    for entry in entries:
        by_version.setdefault(Version(entry.version.public), []).append(entry)
    return [
        _version(str(version), by_version[version], plan if plan and Version(plan.version) == version else None)
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


def _version(version: str, entries: Sequence[Entry], plan: ProjectPlan | None) -> VersionCoverage:
    numbers: dict[str, int] = {}
    why = {cell: reason for reason, cells in (plan.skipped if plan else {}).items() for cell in cells}

    def skipped(cell: Cell) -> Field:
        return Field(SKIPPED, reason=numbers.setdefault(why[cell], len(numbers) + 1)) if cell in why else Field()

    grid = grid_of(cell_fields(entries, plan), skipped)
    reasons = list(dict.fromkeys([*numbers, *why.values()]))
    ordered = sorted(entries, key=lambda entry: entry.filename)
    return VersionCoverage(
        version,
        grid,
        tuple(Reason(reason, _combinations(plan.skipped[reason])) for reason in reasons) if plan else (),
        _installs(entries),
        tuple(map(_wheel, ordered)),
        plan is not None,
    )


def _combinations(cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """The Pythons of each torch and CUDA, as text."""
    pythons: dict[tuple[str, str], list[Python]] = {}
    for cell in cells:
        pythons.setdefault((str(cell.torch), str(cell.cuda)), []).append(cell.python)
    return tuple(
        (f"torch {torch}, CUDA {cuda}", ", ".join(map(str, dict.fromkeys(sorted(found)))))
        for (torch, cuda), found in pythons.items()
    )


def _installs(entries: Sequence[Entry]) -> tuple[Install, ...]:
    """What to install from which path of the index; several wheels of one version are one line."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    unknown = {str(entry.version) for entry in entries if entry.farm and entry.farm.cuda_unknown}
    wheels: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.filename):
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

    ordered = sorted(cells, key=rank, reverse=True)
    return tuple(
        Install(_target(key[0], cells[key], unknown=key[1] in unknown), *key, tuple(wheels[key[1]])) for key in ordered
    )


def _target(path: str, cells: Sequence[Cell], *, unknown: bool) -> str:
    """For which CUDA and torch the wheels of a path are, as far as they were tested."""
    variants = sorted({cell.cuda for cell in cells}, reverse=True)
    torches = sorted({cell.torch for cell in cells})
    if not torches:
        every = "Not tested, and for which CUDA is unknown" if unknown else "Every CUDA"
        return every if path == ALL else path
    between = f"{torches[0]} to {torches[-1]}" if len(torches) > 1 else f"{torches[0]}"
    return f"CUDA {', '.join(map(str, variants))} with torch {between}"


def _wheel(entry: Entry) -> WheelLine:
    farm = entry.farm
    evidence = [("METADATA", f"{entry.path}.metadata")]
    if farm:
        evidence += [("proofs", farm.proofs), ("SBOM", farm.sbom), ("provenance", farm.statement)]
    return WheelLine(
        filename=entry.filename,
        path=entry.path,
        size=size_text(entry.size),
        uploaded=entry.uploaded[:10],
        gpu_code=", ".join(farm.archs) if farm else "",
        yanked=entry.yanked,
        cells=tuple(farm.cells) if farm else (),
        evidence=tuple((name, path) for name, path in evidence if path),
        origin=_origin(farm.origin) if farm and farm.origin else None,
        gradients=gradient_text(farm.gradients) if farm else "",
    )


def _origin(text: str) -> tuple[str, str]:
    """The server of a URL with the URL, or the text."""
    parts = split_url(text)
    return (parts.netloc, text) if parts.scheme in ("http", "https") else (text, "")
