"""A package index of static files (PEP 503, 658, 691, 714) for pip and uv, in a folder or on a web server."""

from __future__ import annotations

import hashlib
import html
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.publish.unchanged import write_if_changed
from builder.wheelfile.archive import WheelFile

_HTML_VERSION = "1.0"  # PEP 629: repository version; the HTML pages use nothing newer
_JSON_VERSION = "1.1"  # PEP 700: with `versions` and `size`


@dataclass(frozen=True)
class _IndexedWheel:
    """One wheel as the pages list it. Digests are sha256, hex; `size` is in bytes; `uploaded` is UTC, ISO 8601."""

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
        """Relative to the page of the project, with `+` quoted: some servers read it as a space."""
        return f"../../{quote(self.name)}"


def write_index(dist: Path, wheels: Sequence[Path]) -> Path:
    """Write `dist/simple/` so that it lists exactly these wheels of the folder `dist`; return its path.

    It has an `index.html` and an `index.json` (PEP 691) for each project and for the list of projects. The METADATA of
    each wheel is copied to `WHEEL.metadata`, so that an installer reads the requirements without downloading the wheel.
    Equal wheels give equal bytes, and unchanged files are not written. Every file is replaced atomically, METADATA
    first and the list of projects last: a reader never follows a link to a file that does not exist yet.

    Raises UsageError for a wheel that does not exist, is not in `dist` or cannot be read, and for a file name that
    differs from the METADATA.
    """
    simple = dist / "simple"
    listed = _listed_wheels(simple)
    projects: dict[str, list[_IndexedWheel]] = {}
    for wheel in sorted(wheels):
        if not wheel.is_file():
            raise UsageError("there is no such wheel", where=str(wheel))
        if wheel.resolve().parent != dist.resolve():
            raise UsageError(f"the wheel is not in {dist}, so the index cannot link to it", where=str(wheel))
        entry = _index_wheel(wheel, listed.get(wheel.name))
        projects.setdefault(entry.project, []).append(entry)
    for project, files in projects.items():
        files.sort(key=lambda file: (file.version, file.name))
        write_if_changed(simple / project / "index.html", _project_page(project, files))
        write_if_changed(simple / project / "index.json", _json(_project_data(project, files)))
    write_if_changed(
        simple / "index.html",
        _page("Simple index", [f'<a href="{p}/">{p}</a><br>' for p in sorted(projects)]),
    )
    root = {"meta": {"api-version": _JSON_VERSION}, "projects": [{"name": p} for p in sorted(projects)]}
    write_if_changed(simple / "index.json", _json(root))
    _delete_stale(dist, simple, set(projects))
    return simple


def install_commands(dist: Path, name: str, version: str, torch: Sequence[str], torch_index: str = "") -> list[str]:
    """The commands of pip and of uv that install this wheel from the index in `dist`, quoted for a shell.

    `torch` are the requirements of a cell, and `torch_index` is the index that has them; empty: the default index. So
    the commands work in an empty environment, and keep a torch that fits. The exact version has a local part, which
    public indexes refuse, so that no package of the same name on another index can be installed instead.
    """
    ours = (dist / "simple").resolve().as_uri()
    wanted = [f"{name}=={version}", *torch]
    pip = ["pip", "install", "--extra-index-url", ours, *(("--extra-index-url", torch_index) if torch_index else ())]
    uv = ["uv", "pip", "install", "--index", ours, *(("--index", torch_index) if torch_index else ())]
    return [shlex.join([*pip, *wanted]), shlex.join([*uv, *wanted])]


def _index_wheel(wheel: Path, listed: _IndexedWheel | None) -> _IndexedWheel:
    """The entry of a wheel; `listed`, its entry in the existing pages, is reused if size and time are the same."""
    stat = wheel.stat()
    uploaded = datetime.fromtimestamp(stat.st_mtime_ns // 1000 / 1e6, UTC).isoformat(timespec="microseconds")
    uploaded = uploaded.replace("+00:00", "Z")
    metadata_path = wheel.with_name(f"{wheel.name}.metadata")
    if listed and (listed.size, listed.uploaded) == (stat.st_size, uploaded) and metadata_path.is_file():
        return listed
    with WheelFile(wheel) as archive:
        metadata, headers = archive.read_dist_info("METADATA"), archive.metadata
    try:
        project, version, _, _ = parse_wheel_filename(wheel.name)
        named = (canonicalize_name(headers["Name"] or ""), Version(headers["Version"] or ""))
    except ValueError as error:
        raise UsageError(f"this wheel cannot be read: {error}", where=str(wheel)) from None
    if named != (project, version):
        raise UsageError(f"METADATA says {named[0]} {named[1]}, but the file name differs", where=str(wheel))
    write_if_changed(metadata_path, metadata)
    return _IndexedWheel(
        name=wheel.name,
        project=project,
        version=version,
        size=stat.st_size,
        uploaded=uploaded,
        sha256=sha256_of(wheel),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        requires_python=headers["Requires-Python"] or "",
    )


def _listed_wheels(simple: Path) -> dict[str, _IndexedWheel]:
    """The entries of the existing pages, by file name; unreadable pages are ignored."""
    listed = {}
    for page in simple.glob("*/index.json"):
        try:
            for entry in json.loads(page.read_bytes())["files"]:
                listed[entry["filename"]] = _IndexedWheel(
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
    return listed


def _project_page(project: str, files: Sequence[_IndexedWheel]) -> bytes:
    lines = []
    for file in files:
        # PEP 714 renamed the attribute of PEP 658; older installers only know the first name.
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


def _project_data(project: str, files: Sequence[_IndexedWheel]) -> dict[str, Any]:
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


def _delete_stale(dist: Path, simple: Path, projects: set[str]) -> None:
    """Delete the pages of projects without wheels, and METADATA files without a wheel."""
    for page in simple.glob("*/index.html"):
        if page.parent.name not in projects:
            shutil.rmtree(page.parent)
    for metadata in dist.glob("*.whl.metadata"):
        if not metadata.with_suffix("").exists():
            metadata.unlink()
