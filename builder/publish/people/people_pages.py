"""Writes the pages for people as HTML without external files: a page for each project, and the first page."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from builder.matrix.axes import Cell
from builder.publish.index.entry import Entry
from builder.publish.index.levels import Level
from builder.publish.index.objects import Objects
from builder.publish.index.pages import quoted
from builder.publish.people.coverage import MISSING, ROOT, ProjectPlan, cell_fields, coverage
from builder.untrusted import JsonError, parse_json, text

if TYPE_CHECKING:
    from jinja2 import Environment

# The templates of pages in HTML, with what all of them share.

_HERE = Path(__file__).parent
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
    environment.filters |= {"digest": _digest, "url": quoted}
    environment.globals |= {
        "labels": LABELS,
        "levels": LEVELS,
        "meanings": _MEANINGS,
        "script": script,
        "style": "\n".join(text for text in ((_HERE / "style.css").read_text(), style) if text),
    }
    return environment


def _digest(text: str) -> str:
    """The hash that lets a browser accept this style or script of the page, and no other (Content-Security-Policy)."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# The coverage of all planned projects on the first page: a row for each torch and CUDA, a column for each project.

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


#: The folder with a page for each project.
FOLDER = "projects"


def project_page(project: str, entries: Sequence[Entry], plan: ProjectPlan | None = None) -> bytes:
    """The page of a project: coverage, wheels, evidence, and commands that install."""
    template = _templates().get_template("project.html.j2")
    return template.render(project=project, versions=coverage(entries, plan), root=ROOT).encode()


def home_page(projects: Sequence[str], summaries: Mapping[str, bytes] | None = None) -> bytes:
    """The first page: the projects, with a field that filters them, and the coverage of those with a summary."""
    template = _templates().get_template("home.html.j2")
    return template.render(projects=sorted(projects), folder=FOLDER, overview=overview(summaries or {})).encode()


@cache
def _templates() -> Environment:
    return templates(script=Path(__file__).with_name("script.js").read_text())


# Writes the pages for people into an index: a page for each project, and the first page.

#: The folder with the plan of each project.
PLANS = "plans"
#: The folder with the part of each planned project in the first page. One folder, so that a bucket reads it at once.
SUMMARIES = "coverage"
HOME = "index.html"


def people_paths(project: str) -> tuple[str, str]:
    """The paths of the page of a project and of its part of the first page."""
    return f"{FOLDER}/{project}/{HOME}", f"{SUMMARIES}/{project}"


def people_pages(project: str, entries: Sequence[Entry], plan: ProjectPlan | None) -> Iterator[tuple[str, bytes]]:
    """The page of a project and its part of the first page, by path; those without wheels and plan get none."""
    page, part = people_paths(project)
    if entries or plan:
        yield page, project_page(project, entries, plan)
    if plan:
        yield part, summary(entries, plan)


def write_home(objects: Objects, attempts: int) -> None:
    """Write the first page, and repeat this while others change what it shows."""
    for _ in range(attempts):
        projects, summaries = shown = _home_facts(objects)
        write_changed(objects, "", {HOME: home_page(projects, summaries)})
        if _home_facts(objects) == shown:
            break


def read_plan(objects: Objects, project: str) -> ProjectPlan | None:
    """What a matrix plans for a project; None without a readable plan."""
    try:
        return ProjectPlan.from_json(objects.read(f"{PLANS}/{project}"))
    except (FileNotFoundError, JsonError):
        return None


def write_changed(objects: Objects, folder: str, pages: Mapping[str, bytes]) -> set[str]:
    """Write those pages that changed, by their paths from a folder; "": from the root of the index.

    Returns those that did not exist.
    """
    created = set()
    for name, data in pages.items():
        path = f"{folder}/{name}".lstrip("/")
        before = read(objects, path)
        if before != data:
            objects.write(path, data)
        if before is None:
            created.add(name)
    return created


def read(objects: Objects, name: str) -> bytes | None:
    """Contents of an object; None if there is none."""
    try:
        return objects.read(name)
    except FileNotFoundError:
        return None


def _home_facts(objects: Objects) -> tuple[list[str], dict[str, bytes]]:
    """What the first page shows: the projects, and the summaries of those with a plan."""
    return objects.folders(FOLDER), objects.read_all(SUMMARIES)
