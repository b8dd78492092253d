"""Writes the pages for people into an index: a page for each project, and the first page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.publish.index.entry import Entry
from builder.publish.index.objects import Objects
from builder.publish.index.pages import Status
from builder.publish.people.overview import summary
from builder.publish.people.people_pages import FOLDER, home_page, project_page
from builder.publish.people.project_plan import ProjectPlan
from builder.untrusted.json_data import JsonError

#: The folder with the plan of each project.
PLANS = "plans"
#: The folder with the part of each planned project in the first page. One folder, so that a bucket reads it at once.
_SUMMARIES = "coverage"
_PAGE = "index.html"


def write_project(
    objects: Objects, project: str, entries: Sequence[Entry], status: Status, plan: ProjectPlan | None
) -> None:
    """Write the page of a project and its part of the first page; delete those of a project without wheels and plan."""
    plan = None if status.name == "archived" else plan  # an archived project gets no more wheels
    page = project_page(project, entries, status, plan) if entries or plan else None
    _write_or_delete(objects, f"{FOLDER}/{project}", _PAGE, page)
    _write_or_delete(objects, _SUMMARIES, project, summary(entries, plan) if plan else None)


def write_home(objects: Objects, attempts: int) -> None:
    """Write the first page, and repeat this while others change what it shows."""
    for _ in range(attempts):
        projects, summaries = shown = _home_facts(objects)
        write_changed(objects, "", {_PAGE: home_page(projects, summaries)})
        if _home_facts(objects) == shown:
            break


def read_plan(objects: Objects, project: str) -> ProjectPlan | None:
    """What a matrix plans for a project; None without a readable plan."""
    try:
        return ProjectPlan.from_json(objects.read(f"{PLANS}/{project}"))
    except (FileNotFoundError, JsonError):
        return None


def write_changed(objects: Objects, folder: str, pages: Mapping[str, bytes]) -> None:
    """Write those pages of a folder that changed."""
    for name, data in pages.items():
        path = f"{folder}/{name}".lstrip("/")
        if read(objects, path) != data:
            objects.write(path, data)


def read(objects: Objects, name: str) -> bytes | None:
    """Contents of an object; None if there is none."""
    try:
        return objects.read(name)
    except FileNotFoundError:
        return None


def _write_or_delete(objects: Objects, folder: str, name: str, data: bytes | None) -> None:
    if data is None:
        objects.delete(f"{folder}/{name}")
    else:
        write_changed(objects, folder, {name: data})


def _home_facts(objects: Objects) -> tuple[list[str], dict[str, bytes]]:
    """What the first page shows: the projects, and the summaries of those with a plan."""
    return objects.names(FOLDER), objects.read_all(_SUMMARIES)
