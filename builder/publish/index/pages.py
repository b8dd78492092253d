"""The pages of an index: HTML (PEP 503, 592, 629, 658, 714, 740) and JSON (PEP 691, 700), and which page lists a wheel.

The paths of an index are all wheels, those without CUDA, those of each CUDA variant, and those of each torch of it.
"""

import html
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.publish.index.entry import Entry
from builder.untrusted import parse_json

#: The path with every wheel, and the path of wheels without CUDA. Each CUDA variant has a path of its name.
ALL, WITHOUT_CUDA = "simple", "cpu"
#: The end of the path of one torch, such as `cu130/torch2.11`. The normalized name of a project has no point.
_TORCH = re.compile(r"torch\d+\.\d+")
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


def paths_of(entry: Entry) -> tuple[str, ...]:
    """The paths that list a wheel besides `simple`; none if it may use CUDA of an unknown variant.

    The path of a torch has the wheels whose version and METADATA admit this torch. A wheel that admits every torch is
    in those of the torches that it was tested with, if it was tested.
    """
    if not entry.farm or not (entry.farm.cuda or entry.farm.cuda_unknown):
        return (WITHOUT_CUDA,)
    pairs = [(variant, series) for variant in entry.farm.cuda for series in _series(entry, variant)]
    return (*entry.farm.cuda, *(f"{variant}/torch{series}" for variant, series in pairs))


def _series(entry: Entry, variant: str) -> Collection[str]:
    tested = dict.fromkeys(cell.torch.series for cell in entry.cells if cell.cuda.variant == variant)
    requires = entry.farm.requires_torch if entry.farm else None
    if requires is None and not entry.local.series:  # an earlier version of buildfarm wrote the record
        return tested
    admitted, is_every = _admitted(entry.version.local or "", requires or (), variant)
    return tested if is_every and tested else admitted


@lru_cache(maxsize=2**12)
def _admitted(local: str, requires: tuple[str, ...], variant: str) -> tuple[tuple[str, ...], bool]:
    """The torch series that a local version and requirements admit with a CUDA; and whether they admit every torch."""
    from builder.proofs.claimed_cells import StatedTorch  # noqa: PLC0415 - takes long

    compat = Compat.load()
    stated = StatedTorch(f"0+{local}" if local else "0", requires)
    admitted, excluded = dict[str, None](), set[str]()
    for torch in compat.torches:
        for cuda in sorted(compat.torch(torch).variants):
            cells = (Cell(torch, cuda, python) for python in compat.pythons)
            if all(map(stated.why_not, cells)):
                excluded.add(torch.series)
            elif variant in (cuda.variant, f"cu{cuda.major}"):
                admitted[torch.series] = None
    return tuple(admitted), not excluded


def path_to_install(entry: Entry, variant: str = "") -> str:
    """The path in the command that installs a wheel: of its torch if it admits only one, else of its CUDA variant.

    Without a CUDA variant, it is the newest one of the wheel.
    """
    variants = [path for path in paths_of(entry) if "/" not in path]
    best = max(variants, key=lambda one: (len(one), one), default=ALL)
    if variant:
        best = next((path for path in (variant, variant[:-1]) if path in variants), ALL)
    requires = entry.farm.requires_torch if entry.farm else None
    series, is_every = _admitted(entry.version.local or "", requires or (), best)
    return f"{best}/torch{series[0]}" if len(series) == 1 and not is_every else best


def is_path(name: str) -> bool:
    """Whether this is the name of a path: `simple`, `cpu`, `cu130`, `cu130/torch2.11`."""
    top, slash, torch = name.partition("/")
    return (is_variant(top) and (not slash or is_torch(torch))) or name in {ALL, WITHOUT_CUDA}


def is_variant(name: str) -> bool:
    """Whether this is the name of a CUDA variant: `cu130`, or `cu13` for every CUDA of one major version."""
    return name.startswith("cu") and name[2:].isdigit()


def is_torch(name: str) -> bool:
    """Whether this is the folder of one torch in the path of a CUDA variant: `torch2.11`."""
    return _TORCH.fullmatch(name) is not None
