"""The pages for people, as HTML without external files: a page for each project, and the list of projects.

A page shows how to install each version, and its wheels with the level of each cell and the evidence.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from builder.gate.amounts import grouped, size_text
from builder.matrix.axes import Cell
from builder.publish.index.install import wheel_url
from builder.publish.index.pages import ALL, Entry, FarmFacts, path_to_install, quoted
from builder.publish.proof_lines import gradient_text
from builder.untrusted import split_url

if TYPE_CHECKING:
    from jinja2 import Environment

#: The folder with a page for each project, and the first page.
FOLDER, HOME = "projects", "index.html"
#: The levels as a page shows them, the best first, and the words for the states of a cell.
LEVELS = ["gpu", "cpu", "static", "none"]
LABELS = {"gpu": "GPU", "cpu": "CPU", "static": "static", "none": "unproven"}
_MEANINGS = {
    "gpu": "every op was run on a GPU, and every result is right",
    "cpu": "every op was run on the CPU, and every result is right",
    "static": "there is a wheel, and the checks that run no op passed",
    "none": "there is a wheel, and some of its checks did not run",
    "failed": "a check failed",
    "not built": "there is no wheel, because the build failed",
}
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
        "levels": _levels,
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


def project_page(project: str, entries: Sequence[Entry]) -> bytes:
    """The page of a project: its versions, stable ones first, then the newest, with commands and wheels."""
    named = sorted(entries, key=lambda one: one.filename)
    by_version = grouped((Version(entry.version.public), entry) for entry in named)
    versions = [
        {"version": version, "installs": _installs(by_version[version]), "wheels": by_version[version]}
        for version in sorted(by_version, key=lambda one: (not one.is_prerelease, one), reverse=True)
    ]
    return _templates().get_template("project.html.j2").render(project=project, versions=versions).encode()


def home_page(projects: Sequence[str]) -> bytes:
    """The first page: the projects, with a field that filters them."""
    return _templates().get_template("home.html.j2").render(projects=sorted(projects), folder=FOLDER).encode()


def _levels(farm: FarmFacts) -> list[tuple[str, str]]:
    """The levels that a wheel reaches, the best first, each with its cells and the GPU models of each cell."""
    gpus = {cell: f" ({', '.join(models)})" for cell, models in farm.gpus.items() if models}
    shown = grouped((level, f"{cell}{gpus.get(cell, '')}") for cell, level in farm.cells.items())
    return [(level, ", ".join(shown[level])) for level in LEVELS if level in shown]


def _installs(entries: Sequence[Entry]) -> list[Mapping[str, object]]:
    """What to install from which path of the index; several wheels of one version are one line.

    The path of the newest tested CUDA and torch comes first. `wheels` are file names and URLs from the root of the
    index, if the version has no local part: see `install_commands`.
    """
    cells: dict[tuple[str, str], list[Cell]] = {}
    wheels: dict[str, list[tuple[str, str]]] = {}
    for entry in entries:
        if entry.yanked is not None:
            continue
        version = str(entry.version)
        if not entry.version.local:
            wheels.setdefault(version, []).append((entry.filename, wheel_url("", entry.path, entry.sha256)))
        for variant in (entry.farm.cuda if entry.farm else ()) or (ALL,):
            path = path_to_install(entry, variant) if variant != ALL else ALL
            known = cells.setdefault((path, version), [])
            known += [cell for cell in entry.cells if variant in {cell.cuda.variant, ALL}]

    def rank(key: tuple[str, str]) -> tuple[object, ...]:
        newest = max(((cell.cuda, cell.torch) for cell in cells[key]), default=key)
        return (bool(cells[key]), *newest, *key)

    return [
        {"path": path, "version": version, "wheels": wheels.get(version, ())}
        for path, version in sorted(cells, key=rank, reverse=True)
    ]
