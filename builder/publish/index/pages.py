"""The pages of an index: HTML (PEP 503, 592, 629, 658, 714, 740) and JSON (PEP 691, 700)."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from builder.publish.index.entry import Entry
from builder.untrusted import parse_json

#: PEP 629: the version of the repository API. Without a status (PEP 792, in 1.4), a project is active.
API_VERSION = "1.4"


def project_pages(project: str, listed: Mapping[str, Sequence[Entry]]) -> Iterator[tuple[str, bytes]]:
    """The pages of a project, with their names, in each path. `listed` has the entries of each path.

    The entries are sorted by version and file name.
    """
    made: dict[tuple[str, str], tuple[str, str]] = {}  # a wheel is in several paths
    for path, entries in listed.items():
        root = "../" * (path.count("/") + 2)
        shown = sorted(entries, key=lambda entry: (entry.version, entry.filename))
        for entry in shown:
            if (root, entry.filename) not in made:
                file = entry.to_json() | {"url": root + quoted(entry.path)}
                made[root, entry.filename] = (_line(entry, root), _json(file))
        lines = [made[root, entry.filename] for entry in shown]
        yield f"{path}/{project}/index.html", _page(f"Links for {project}", [line for line, _ in lines])
        versions = [str(version) for version in dict.fromkeys(entry.version for entry in shown)]
        data = _json({"meta": {"api-version": API_VERSION}, "name": project, "versions": versions})
        page = f'{data[:-1]},"files":[{",".join(file for _, file in lines)}]}}\n'
        yield f"{path}/{project}/index.json", page.encode()


def root_pages(projects: Sequence[str]) -> dict[str, bytes]:
    """The pages that list the projects, by file name."""
    ordered = sorted(projects)
    data = {"meta": {"api-version": API_VERSION}, "projects": [{"name": project} for project in ordered]}
    return {
        "index.html": _page("Simple index", [f'<a href="{project}/">{project}</a><br>' for project in ordered]),
        "index.json": f"{_json(data)}\n".encode(),
    }


def entries_of(page: bytes) -> list[Entry]:
    """The entries of a project's JSON page; raises JsonError for anything else."""
    entries = parse_json(page, lambda data: [Entry.from_json(file) for file in data["files"]])
    return [replace(entry, path=unquote(re.sub(r"^(?:\.\./)+", "", entry.path))) for entry in entries]


@lru_cache(maxsize=2**14)
def quoted(path: str) -> str:
    """The path as a part of a URL. The pages of a project name each file several times."""
    return quote(path)


def _line(entry: Entry, root: str) -> str:
    """The line of a wheel in HTML. Its URL has `+` quoted: some servers read `+` as a space."""
    # Not also `data-dist-info-metadata`, the first name: pip before 23.2 then refuses a wheel whose METADATA spells
    # the project differently from the command line.
    attributes = {
        "href": f"{root}{quoted(entry.path)}#sha256={entry.sha256}",
        "data-core-metadata": f"sha256={entry.metadata_sha256}",
        "data-requires-python": entry.requires_python or None,
        "data-yanked": entry.yanked,
    }
    text = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items() if value is not None)
    note = " not tested" if entry.farm and not entry.farm.cells else ""
    return f"<a {text}>{html.escape(entry.filename)}</a>{note}<br>"


def _page(title: str, lines: Sequence[str]) -> bytes:
    page = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        f"<title>{title}</title>",
        "</head>",
        "<body>",
        f"<h1>{title}</h1>",
        *lines,
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(page).encode()


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))  # twice as fast to write as indented text
