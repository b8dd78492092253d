"""Writes the pages for people as HTML without external files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from builder.publish.index.entry import Entry
from builder.publish.index.pages import Status
from builder.publish.people.coverage import ROOT, coverage
from builder.publish.people.overview import overview
from builder.publish.people.project_plan import ProjectPlan
from builder.publish.people.templates import templates

if TYPE_CHECKING:
    from jinja2 import Environment

#: The folder with a page for each project.
FOLDER = "projects"


def project_page(
    project: str, entries: Sequence[Entry], status: Status | None = None, plan: ProjectPlan | None = None
) -> bytes:
    """The page of a project: coverage, wheels, evidence, and commands that install."""
    template = _templates().get_template("project.html.j2")
    return template.render(
        project=project, versions=coverage(entries, plan), status=status or Status(), root=ROOT
    ).encode()


def home_page(projects: Sequence[str], summaries: Mapping[str, bytes] | None = None) -> bytes:
    """The first page: the projects, with a field that filters them, and the coverage of those with a summary."""
    template = _templates().get_template("home.html.j2")
    return template.render(projects=sorted(projects), folder=FOLDER, overview=overview(summaries or {})).encode()


@cache
def _templates() -> Environment:
    return templates(script=Path(__file__).with_name("script.js").read_text())
