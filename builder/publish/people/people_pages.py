"""Writes the pages for people as HTML without external files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from builder.publish.index.entry import Entry
from builder.publish.people.coverage import ROOT, coverage

if TYPE_CHECKING:
    from jinja2 import Environment

#: The folder with a page for each project.
FOLDER = "projects"


def project_page(project: str, entries: Sequence[Entry]) -> bytes:
    """The page of a project: coverage, wheels, evidence, and commands that install."""
    text = _environment().get_template("project.html.j2").render(project=project, versions=coverage(entries), root=ROOT)
    return text.encode()


def home_page(projects: Sequence[str]) -> bytes:
    """The first page: the projects, with a field that filters them."""
    return _environment().get_template("home.html.j2").render(projects=sorted(projects), folder=FOLDER).encode()


@cache
def _environment() -> Environment:
    # jinja2 loads slowly, and `build` imports this module without making a page.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("builder.publish.people", "."),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["url"] = quote
    return environment
