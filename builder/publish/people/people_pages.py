"""The pages for people, as HTML without external files: a page for each project, and the first page.

A page shows what a matrix plans, what is known of each cell, how to install, and the wheels.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.gate.amounts import size_text
from builder.matrix.axes import Cell, Cuda, Platform, Python, Torch
from builder.matrix.local_version import current_form
from builder.matrix.plan import Build, Plan
from builder.publish.gradients import gradient_text
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.install import wheel_url
from builder.publish.index.levels import Level
from builder.publish.index.objects import Objects
from builder.publish.index.pages import ALL, path_to_install, quoted
from builder.untrusted import JsonError, parse_json, split_url, text, texts

if TYPE_CHECKING:
    from jinja2 import Environment

#: The folder of an index with the plan of each project.
PLANS = "plans"
#: The states of a cell beside the levels: planned without a wheel, and not planned for a reason.
MISSING, SKIPPED = "missing", "skipped"
_LEVELS = [str(level) for level in Level]
#: The folder with a page for each project.
FOLDER = "projects"
#: The folder with the part of each planned project in the first page. One folder, so that a bucket reads it at once.
SUMMARIES = "coverage"
HOME = "index.html"
#: The levels as a page shows them, the best first, and the words for the states of a cell.
LEVELS = ["gpu", "cpu", "static", "none"]
LABELS = {"gpu": "GPU", "cpu": "CPU", "static": "built", "none": "unproven", MISSING: "missing"}
_MEANINGS = {
    "gpu": "every op was run on a GPU, and every result is right",
    "cpu": "every op was run on the CPU, and every result is right",
    "static": "there is a wheel, and the checks that run no op passed",
    "none": "there is a wheel, and some of its checks did not run",
    MISSING: "planned, but there is no wheel, or only a yanked one",
    "failed": "a check failed",
    "not built": "there is no wheel, because the build failed",
}
#: The states of a cell, the best first.
_STATES = (*map(str, reversed(Level)), MISSING)
_HERE = Path(__file__).parent


def templates(*folders: Path, style: str = "", script: str = "") -> Environment:
    """The templates of these folders and of this one; `style` is added to the style of every page."""
    # jinja2 loads slowly, and `build` imports this module without making a page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader([*folders, _HERE]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "digest": _digest,
        "gradients": gradient_text,
        "server": _server,
        "size": size_text,
        "url": quoted,
    }
    environment.globals |= {
        "labels": LABELS,
        "levels": LEVELS,
        "meanings": _MEANINGS,
        "no_facts": FarmFacts(),
        "script": script,
        "style": "\n".join(text for text in ((_HERE / "style.css").read_text(), style) if text),
    }
    return environment


def _digest(text: str) -> str:
    """The hash that lets a browser accept this style or script of the page, and no other (Content-Security-Policy)."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _server(origin: str) -> str:
    """The server of a URL; empty for another text."""
    parts = split_url(origin)
    return parts.netloc if parts.scheme in ("http", "https") else ""


@cache
def _templates() -> Environment:
    return templates(script=(_HERE / "script.js").read_text())


def project_page(project: str, entries: Sequence[Entry], plan: ProjectPlan | None = None) -> bytes:
    """The page of a project: coverage, wheels, evidence, and commands that install."""
    template = _templates().get_template("project.html.j2")
    return template.render(project=project, versions=coverage(entries, plan), root="../../").encode()


def home_page(projects: Sequence[str], summaries: Mapping[str, bytes] | None = None) -> bytes:
    """The first page: the projects, with a field that filters them, and the coverage of those with a summary.

    The table has a column for each project, and a row for each torch and CUDA, with the newest torch first.
    """
    versions, states = dict[str, str](), dict[str, dict[Cell, str]]()
    for project, page in sorted((summaries or {}).items()):
        with suppress(JsonError):  # `publish` writes a damaged summary again
            versions[project], states[project] = parse_json(page, _read_summary)
    rows = []
    for group in sorted({_group(cell) for cells in states.values() for cell in cells}, reverse=True):
        shown = ([state for cell, state in cells.items() if _group(cell) == group] for cells in states.values())
        counts = [[(state, count[state]) for state in _STATES if count[state]] for count in map(Counter, shown)]
        torch, cuda, platform = map(str, group)
        rows.append({"torch": torch, "cuda": cuda, "platform": platform, "counts": counts})
    template = _templates().get_template("home.html.j2")
    return template.render(projects=sorted(projects), folder=FOLDER, versions=versions, rows=rows).encode()


def people_paths(project: str) -> tuple[str, str]:
    """The paths of the page of a project and of its part of the first page."""
    return f"{FOLDER}/{project}/{HOME}", f"{SUMMARIES}/{project}"


def people_pages(project: str, entries: Sequence[Entry], plan: ProjectPlan | None) -> Iterator[tuple[str, bytes]]:
    """The page of a project and its part of the first page, by path; those without wheels and plan get none."""
    page, part = people_paths(project)
    if entries or plan:
        yield page, project_page(project, entries, plan)
    if plan:
        own = [entry for entry in entries if Version(entry.version.public) == Version(plan.version)]
        cells = {str(cell): field.state for cell, field in sorted(cell_fields(own, plan).items())}
        yield part, (json.dumps({"version": plan.version, "cells": cells}, indent=1) + "\n").encode()


def _group(cell: Cell) -> tuple[Torch, Cuda, Platform]:
    return cell.torch, cell.cuda, cell.platform


def _read_summary(data: dict[str, Any]) -> tuple[str, dict[Cell, str]]:
    return text(data["version"]), {Cell.parse(name): text(state) for name, state in data["cells"].items()}


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
