"""The pages of an index: HTML (PEP 503, 592, 629, 658, 714, 740) and JSON (PEP 691, 700), with an entry for each wheel.

The paths of an index are all wheels, those without CUDA, those of each CUDA variant, and those of each torch of it.
"""

import html
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Self
from urllib.parse import quote, unquote

from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pydantic import TypeAdapter

from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.local_version import LocalVersion, read_local
from builder.untrusted import parse_json
from builder.wheelfile.compatibility import admits

#: PEP 691 reserves keys that start with an underscore for the index itself.
OWN_KEY = "_buildfarm"
#: The media type of a JSON page (PEP 691).
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
#: Media types of the other files that a browser may show as text, by the end of their names; it saves every other file.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    "index.json": JSON_TYPE,
    ".json": "application/json",
    ".metadata": "text/plain; charset=utf-8",
}
#: The path with every wheel, and the path of wheels without CUDA. Each CUDA variant has a path of its name.
ALL, WITHOUT_CUDA = "simple", "cpu"
#: The end of the path of one torch, such as `cu130/torch2.11`. The normalized name of a project has no point.
_TORCH = re.compile(r"torch\d+\.\d+")
#: PEP 629: the version of the repository API. Without a status (PEP 792, in 1.4), a project is active.
API_VERSION = "1.4"


@dataclass(frozen=True)
class FarmFacts:
    """What buildfarm says about a published wheel beyond the standards."""

    #: The CUDA variants under which the wheel is listed, such as ("cu130", "cu132"); empty: no CUDA, or unknown.
    cuda: tuple[str, ...] = ()
    #: The level that the proofs of each cell reach, by the cell's name: `none`, `static`, `cpu` or `gpu`.
    cells: dict[str, str] = field(default_factory=dict)
    #: The paths of the proofs, the unsigned in-toto statement and the SBOM in the index, or "".
    proofs: str = ""
    statement: str = ""
    sbom: str = ""
    #: GPU code that every library with GPU code contains, such as ("sm_80", "compute_90").
    archs: tuple[str, ...] = ()
    #: False for a wheel that somebody else built.
    built_here: bool = False
    #: Where an adopted wheel came from: a URL, or `a file`; "" for other wheels.
    origin: str = ""
    #: The GPU models on which every op was checked in each cell, by the cell's name, such as ("sm_80", "sm_90").
    gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Whether it may use CUDA, of a variant that is not known.
    cuda_unknown: bool = False
    #: The platform that the libraries need, such as `manylinux_2_34_x86_64`, where the tag promises no glibc; or "".
    platform: str = ""
    #: The lines of Requires-Dist that require torch; None: unknown, because an earlier version wrote the record.
    requires_torch: tuple[str, ...] | None = None
    #: What is known of the gradient of each op, by its name: a value of `publish.proof_lines.Gradient`.
    gradients: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without what is empty."""
        plain: dict[str, Any] = _FARM.dump_python(self, mode="json", exclude_defaults=True)
        return plain


_FARM = TypeAdapter(FarmFacts)


@dataclass(frozen=True)
class Entry:
    """One wheel of an index."""

    filename: str
    #: From the root of the index.
    path: str
    #: Of the file, hex.
    sha256: str
    #: Bytes.
    size: int
    #: UTC time, ISO 8601 with microseconds and `Z`.
    uploaded: str
    #: Requires-Python of METADATA, or "".
    requires_python: str
    metadata_sha256: str
    #: None; else why installers should not choose the wheel, maybe "" (PEP 592).
    yanked: str | None = None
    #: None in the index of a `dist` folder.
    farm: FarmFacts | None = None

    @cached_property
    def project(self) -> str:
        """The normalized project name (PEP 503)."""
        return project_of(self.filename)

    @cached_property
    def version(self) -> Version:
        """The version of the file name."""
        return parse_wheel_filename(self.filename)[1]

    @cached_property
    def local(self) -> LocalVersion:
        """What the local version says about torch and CUDA."""
        return read_local(self.version.local or "")

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells in which the wheel was tested, sorted."""
        return sorted(map(_cell_named, self.farm.cells)) if self.farm else []

    def tags_for(self, cell: Cell) -> list[Tag]:
        """The tags of the file name that suit the Python and the processor of a cell."""
        machine = cell.platform.machine
        return [tag for tag in parse_wheel_filename(self.filename)[3] if admits(tag, cell.python, machine)]

    def to_json(self) -> dict[str, Any]:
        """Return the file object of PEP 691 and 700; `url` is the path from the root of the index."""
        return {
            "filename": self.filename,
            "url": self.path,
            "hashes": {"sha256": self.sha256},
            "size": self.size,
            "upload-time": self.uploaded,
            # Not also `dist-info-metadata`, the first name of this key: pip 22.3 to 23.1 crash then (PEP 714).
            "core-metadata": {"sha256": self.metadata_sha256},
            **({"requires-python": self.requires_python} if self.requires_python else {}),
            **({"yanked": self.yanked or True} if self.yanked is not None else {}),
            **({OWN_KEY: self.farm.to_json()} if self.farm else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        yanked = data.get("yanked", False)
        own = data.get(OWN_KEY)
        entry = cls(
            filename=str(data["filename"]),
            path=str(data["url"]),
            sha256=str(data["hashes"]["sha256"]),
            size=int(data["size"]),
            uploaded=str(data["upload-time"]),
            requires_python=str(data.get("requires-python", "")),
            metadata_sha256=str(data["core-metadata"]["sha256"]),
            yanked=None if yanked is False else "" if yanked is True else str(yanked),
            farm=_FARM.validate_python(own) if own else None,
        )
        parse_wheel_filename(entry.filename)
        return entry


#: The cell of a name; the wheels of a project name the same cells again and again.
_cell_named = lru_cache(maxsize=2**14)(Cell.parse)


def project_of(filename: str) -> str:
    """The normalized project name of a wheel's file name; raises ValueError for a name that is no wheel's."""
    return canonicalize_name(parse_wheel_filename(filename)[0])


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


def served_as(name: str) -> tuple[str, str]:
    """How a web server answers with a file of the index: its media type, and how long it may be kept.

    After ten seconds installers ask again, and get a 304 if nothing changed. What a wheel and its METADATA hold never
    changes, and their path has the hash.
    """
    kind = next((kind for end, kind in _TYPES.items() if name.endswith(end)), "application/octet-stream")
    return kind, "max-age=31536000, immutable" if name.endswith((".whl", ".whl.metadata")) else "max-age=10"


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
