"""The index in `dist/`: a package index of static files (PEP 503, 658, 691, 714) for pip and uv."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from builder.errors import UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import entries_of, project_pages, root_pages
from builder.publish.index.wheel_entry import modified, read_entry
from builder.publish.unchanged import write_if_changed
from builder.untrusted.json_data import JsonError


def write_index(dist: Path, wheels: Sequence[Path], unreadable: Callable[[UsageError], object] | None = None) -> Path:
    """Write `dist/simple/` so that it lists exactly these wheels of the folder `dist`; return its path.

    With `unreadable`, a wheel that cannot be read is left out, and the function gets the error.

    It has an `index.html` and an `index.json` (PEP 691) for each project and for the list of projects. The METADATA of
    each wheel is copied to `WHEEL.metadata`, so that an installer reads the requirements without downloading the wheel.
    Equal wheels give equal bytes, and unchanged files are not written. Every file is replaced atomically, METADATA
    first and the list of projects last: a reader never follows a link to a file that does not exist yet.

    Raises UsageError for a wheel that does not exist, is not in `dist` or cannot be read, and for a file name that
    differs from the METADATA.
    """
    simple = dist / "simple"
    listed = _listed_wheels(simple)
    projects: dict[str, list[Entry]] = {}
    for wheel in sorted(wheels):
        if wheel.is_file() and wheel.resolve().parent != dist.resolve():
            raise UsageError(f"the wheel is not in {dist}, so the index cannot link to it", where=str(wheel))
        try:
            entry = _index_wheel(wheel, listed.get(wheel.name))
        except UsageError as error:
            if unreadable is None:
                raise
            unreadable(error)
            continue
        projects.setdefault(entry.project, []).append(entry)
    for project, entries in projects.items():
        _write(simple / project, project_pages(project, entries))
    _write(simple, root_pages(list(projects)))
    _delete_stale(dist, simple, set(projects))
    return simple


def _index_wheel(wheel: Path, listed: Entry | None) -> Entry:
    """The entry of a wheel; `listed`, its entry in the existing pages, is reused if size and time are the same."""
    metadata_path = wheel.with_name(f"{wheel.name}.metadata")
    if listed and metadata_path.is_file() and wheel.is_file():
        stat = wheel.stat()
        if (listed.size, listed.uploaded) == (stat.st_size, modified(stat)):
            return listed
    entry, metadata = read_entry(wheel)
    write_if_changed(metadata_path, metadata)
    return entry


def _listed_wheels(simple: Path) -> dict[str, Entry]:
    """The entries of the existing pages, by file name; unreadable pages are ignored."""
    listed: dict[str, Entry] = {}
    for page in simple.glob("*/index.json"):
        with suppress(OSError, JsonError):
            listed |= {entry.filename: entry for entry in entries_of(page.read_bytes())}
    return listed


def _write(folder: Path, pages: Mapping[str, bytes]) -> None:
    for name, data in pages.items():
        write_if_changed(folder / name, data)


def _delete_stale(dist: Path, simple: Path, projects: set[str]) -> None:
    """Delete the pages of projects without wheels, and METADATA files without a wheel."""
    for page in simple.glob("*/index.html"):
        if page.parent.name not in projects:
            shutil.rmtree(page.parent)
    for metadata in dist.glob("*.whl.metadata"):
        if not metadata.with_suffix("").exists():
            metadata.unlink()
