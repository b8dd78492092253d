"""The private index: static pages (PEP 503, 658, 691, 714) for pip and uv, in a folder or on a web server."""

from __future__ import annotations

import hashlib
import html
import json
import shlex
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import BytesParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import UsageError
from builder.store import write_whole

_HTML_VERSION = "1.0"  # PEP 629: repository version of the pages; nothing in them is newer
_JSON_VERSION = "1.1"  # PEP 700: `versions` and `size` are there


@dataclass(frozen=True)
class _File:
    """One wheel as the pages show it. Digests are sha256, hex; `uploaded` is UTC, ISO 8601."""

    name: str
    project: str
    version: Version
    size: int
    uploaded: str
    sha256: str
    metadata_sha256: str
    requires_python: str

    @property
    def url(self) -> str:
        """Relative to the project's page; `+` in a query-minded server would read as a blank."""
        return f"../../{quote(self.name)}"


def write_index(dist: Path, wheels: Sequence[Path]) -> Path:
    """Make `dist/simple/` list exactly these wheels of the folder `dist`; returns it.

    Per project an `index.html` and an `index.json` (PEP 691), one of each for the whole; beside each wheel
    its METADATA as `<wheel>.metadata`, so that an installer need not fetch the wheel to learn what it
    requires. Every file is written aside and renamed, wheels' metadata first and the list of projects last: a
    reader meets the old page or the new one, and never a page that promises what is not there. Files that
    would not change are left alone. Same wheels, same bytes.

    Raises UsageError for a wheel that is not there, not in `dist` or cannot be read, and for a name that is
    not its METADATA's.
    """
    simple = dist / "simple"
    known = _known(simple)
    projects: dict[str, list[_File]] = {}
    for wheel in sorted(wheels):
        if not wheel.is_file():
            raise UsageError("there is no such wheel", where=str(wheel))
        if wheel.resolve().parent != dist.resolve():
            raise UsageError(f"the wheel is not in {dist}, so its index cannot point to it", where=str(wheel))
        file = _read(wheel, known.get(wheel.name))
        projects.setdefault(file.project, []).append(file)
    for project, files in projects.items():
        files.sort(key=lambda file: (file.version, file.name))
        _put(simple / project / "index.html", _project_page(project, files))
        _put(simple / project / "index.json", _json(_project_data(project, files)))
    _put(
        simple / "index.html",
        _page("Simple index", [f'<a href="{p}/">{p}</a><br>' for p in sorted(projects)]),
    )
    root = {"meta": {"api-version": _JSON_VERSION}, "projects": [{"name": p} for p in sorted(projects)]}
    _put(simple / "index.json", _json(root))
    _sweep(dist, simple, set(projects))
    return simple


def install_command(dist: Path, name: str, version: str) -> str:
    """The command that installs this wheel from the index in `dist`, quoted for a shell.

    The index is the only one it names: a package of the same name elsewhere cannot come in its place. It
    therefore works where the wheel's requirements are installed already, torch first of all, and refuses,
    naming what is missing, where they are not. It never touches the torch that is there.
    """
    index = (dist / "simple").resolve().as_uri()
    return shlex.join(["pip", "install", "--index-url", index, f"{name}=={version}"])


def _read(wheel: Path, before: _File | None) -> _File:
    """A wheel's entry. One of the same size and time as `before` is not read again: wheels do not change."""
    stat = wheel.stat()
    uploaded = datetime.fromtimestamp(stat.st_mtime_ns // 1000 / 1e6, UTC).isoformat(timespec="microseconds")
    uploaded = uploaded.replace("+00:00", "Z")
    beside = wheel.with_name(f"{wheel.name}.metadata")
    if before and (before.size, before.uploaded) == (stat.st_size, uploaded) and beside.is_file():
        return before
    try:
        project, version, _, _ = parse_wheel_filename(wheel.name)
        with zipfile.ZipFile(wheel) as zipped:
            path = next(n for n in zipped.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
            metadata = zipped.read(path)
        headers = BytesParser().parsebytes(metadata, headersonly=True)
        named = (canonicalize_name(headers["Name"] or ""), Version(headers["Version"] or ""))
    except (ValueError, StopIteration, zipfile.BadZipFile) as error:
        raise UsageError(
            f"is no wheel that can be read: {str(error) or 'it has no METADATA'}", where=str(wheel)
        ) from None
    if named != (project, version):
        raise UsageError(f"its METADATA says {named[0]} {named[1]}, its file name does not", where=str(wheel))
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    _put(beside, metadata)
    return _File(
        name=wheel.name,
        project=project,
        version=version,
        size=stat.st_size,
        uploaded=uploaded,
        sha256=digest,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        requires_python=headers["Requires-Python"] or "",
    )


def _known(simple: Path) -> dict[str, _File]:
    """What the pages there are say of each wheel, by file name; a page that cannot be read says nothing."""
    known = {}
    for page in simple.glob("*/index.json"):
        try:
            for entry in json.loads(page.read_bytes())["files"]:
                known[entry["filename"]] = _File(
                    name=entry["filename"],
                    project=page.parent.name,
                    version=parse_wheel_filename(entry["filename"])[1],
                    size=entry["size"],
                    uploaded=entry["upload-time"],
                    sha256=entry["hashes"]["sha256"],
                    metadata_sha256=entry["core-metadata"]["sha256"],
                    requires_python=entry.get("requires-python", ""),
                )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return known


def _project_page(project: str, files: Sequence[_File]) -> bytes:
    lines = []
    for file in files:
        # PEP 714 gave PEP 658's attribute a second name; older installers know the first only.
        attributes = [
            f'href="{html.escape(file.url)}#sha256={file.sha256}"',
            f'data-dist-info-metadata="sha256={file.metadata_sha256}"',
            f'data-core-metadata="sha256={file.metadata_sha256}"',
        ]
        if file.requires_python:
            attributes.append(f'data-requires-python="{html.escape(file.requires_python)}"')
        lines.append(f"<a {' '.join(attributes)}>{html.escape(file.name)}</a><br>")
    return _page(f"Links for {project}", lines)


def _page(title: str, lines: Sequence[str]) -> bytes:
    page = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{_HTML_VERSION}">',
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


def _project_data(project: str, files: Sequence[_File]) -> dict[str, Any]:
    versions = sorted({file.version for file in files})
    return {
        "meta": {"api-version": _JSON_VERSION},
        "name": project,
        "versions": [str(version) for version in versions],
        "files": [
            {
                "filename": file.name,
                "url": file.url,
                "hashes": {"sha256": file.sha256},
                "size": file.size,
                "upload-time": file.uploaded,
                "core-metadata": {"sha256": file.metadata_sha256},
                "dist-info-metadata": {"sha256": file.metadata_sha256},
                **({"requires-python": file.requires_python} if file.requires_python else {}),
            }
            for file in files
        ],
    }


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()


def _put(path: Path, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        write_whole(path, data)


def _sweep(dist: Path, simple: Path, projects: set[str]) -> None:
    """Take away pages of projects that are gone, and metadata whose wheel is gone."""
    for page in simple.glob("*/index.html"):
        if page.parent.name not in projects:
            shutil.rmtree(page.parent)
    for beside in dist.glob("*.whl.metadata"):
        if not beside.with_suffix("").exists():
            beside.unlink()
