"""Writes the pages for people as HTML without external files: a page for each project, and the first page."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from builder.gate.amounts import size_text
from builder.matrix.axes import Cell, Cuda, Platform, Torch
from builder.publish.gradients import gradient_text
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.levels import Level
from builder.publish.index.pages import quoted
from builder.publish.people.coverage import MISSING, ProjectPlan, cell_fields, coverage
from builder.untrusted import JsonError, parse_json, split_url, text

if TYPE_CHECKING:
    from jinja2 import Environment

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
