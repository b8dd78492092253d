"""The published wheels of an index, and its pages.

    files/AB/CDEF…/WHEEL        the wheel, by its sha256, with WHEEL.metadata, .proofs.json, .intoto.json and .cdx.json
    records/PROJECT/WHEEL.json  its entry: the wheel is published from the moment this object exists
    records/PROJECT/WHEEL.yank  its reason: the wheel is yanked while this object exists
    pending/PROJECT~ID          some process is between a change of the records and the pages
    simple/, cu130/, cpu/       pages for installers: all wheels, and those of each CUDA variant
    cu130/torch2.11/            pages for installers: the wheels of a CUDA variant for one torch
    index.html, projects/       pages for people

The records are the only truth; pages are made from them. No lock is needed: whoever changes a record writes
the pages afterwards and repeats this while the records change. So the last writer of a page has seen every record. This
needs storage that lists an object as soon as it is written, as folders and S3 do.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from packaging.utils import parse_wheel_filename

from builder.errors import BuildfarmError, Code, UsageError
from builder.gate.amounts import grouped
from builder.proof import Proof, proofs_of
from builder.publish.index.objects import Objects, read
from builder.publish.index.pages import (
    ALL,
    Entry,
    entries_of,
    is_path,
    is_torch,
    is_variant,
    paths_of,
    project_of,
    project_pages,
    root_pages,
)
from builder.publish.people.people_pages import FOLDER, HOME, home_page, project_page
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.compatibility import check_wheel_name

T = TypeVar("T")

#: The end of the name of a yank's record.
_YANK = ".yank"
CONFLICT = "the index has a different wheel of this name; a published file never changes"
#: Retries while others change the same project. Each retry means that somebody else has finished a change.
_ATTEMPTS = 1000
_THREADS = 8


class ConflictError(BuildfarmError):
    """The index has a different wheel under this file name. A published file never changes."""


@dataclass(frozen=True)
class NewWheel:
    """A wheel to publish."""

    wheel: Path
    #: Without a path.
    entry: Entry
    #: Contents of the files that are published with the wheel, by the suffix of their name, such as `.metadata`.
    attached: dict[str, bytes]


@dataclass(frozen=True)
class Kept:
    """The evidence that an index has about a wheel, when the same file is published again; empty for a new wheel."""

    proofs: tuple[Proof, ...] = ()
    #: The in-toto statement, or nothing.
    statement: bytes = b""
    #: Where an adopted wheel came from; "" for other wheels.
    origin: str = ""


class Repository:
    """The wheels and pages in one place."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def add(self, new: NewWheel, *, update: bool = True) -> bool:
        """Publish a wheel. Return False if it was published before; then its facts are replaced, unless not `update`.

        Raises ConflictError if the index has a different file of this name; the index is then unchanged.
        """
        entry = replace(new.entry, path=file_path(new.entry.sha256, new.entry.filename))
        name = f"records/{entry.project}/{entry.filename}.json"
        before = self.published(entry.project, entry.filename)
        refuse_other(before, entry)
        self.refuse_other_spelling(entry.filename)
        with self.changing(entry.project):
            self.objects.create(entry.path, new.wheel)
            for suffix, data in new.attached.items():
                self.objects.write(entry.path + suffix, data)
            if before:
                entry = replace(entry, uploaded=before.uploaded)
            data = (json.dumps(entry.to_json(), indent=1) + "\n").encode()
            created = self.objects.create(name, data)
            if not created:
                refuse_other(self.published(entry.project, entry.filename), entry)
                if update:
                    self.objects.write(name, data)
        return created

    def yank(self, filename: str, reason: str | None) -> None:
        """Yank a wheel with a reason (PEP 592), or undo it with None; raises UsageError for an unknown wheel."""
        entry = self.find(filename)
        name = f"records/{entry.project}/{entry.filename}{_YANK}"
        with self.changing(entry.project):
            if reason is None:
                self.objects.delete(name)
            else:
                self.objects.write(name, reason.encode())

    def remove(self, filename: str) -> None:
        """Remove a wheel from the index: its record first, then its files; raises UsageError for an unknown wheel."""
        entry = self.find(filename)
        with self.changing(entry.project):
            for suffix in (".json", _YANK):
                self.objects.delete(f"records/{entry.project}/{entry.filename}{suffix}")
        folder = entry.path.rpartition("/")[0]
        if any(other.path.startswith(f"{folder}/") for other in self.entries(entry.project)):
            return  # the same bytes are also published under another name
        for name in self.objects.names(folder):
            self.objects.delete(f"{folder}/{name}")

    def refuse_other_spelling(self, filename: str) -> None:
        """Raise ConflictError if the wheel is published under a different spelling, such as `Foo_Bar-1.0.0-…`."""
        name = self._spelled(filename)
        if name not in ("", filename):
            sentence = f"the index has this wheel under the name {name}; a published file never changes"
            raise ConflictError(sentence, Code.PUBLISHED_FILE_DIFFERS)

    def _spelled(self, filename: str) -> str:
        """The name of the published wheel that is equal to this one, or differs only in spelling; else empty."""
        wanted = parse_wheel_filename(filename)
        records = self.objects.names(f"records/{project_of(filename)}")
        names = [record.removesuffix(".json") for record in records if record.endswith(".whl.json")]
        return next((name for name in names if name == filename or parse_wheel_filename(name) == wanted), "")

    def published(self, project: str, filename: str) -> Entry | None:
        """The entry of a wheel; None if it is not published."""
        name = f"records/{project}/{filename}"
        data = read(self.objects, f"{name}.json")
        return None if data is None else _read_record(f"{name}.json", data, read(self.objects, f"{name}{_YANK}"))

    def kept(self, filename: str, sha256: str) -> Kept:
        """What the index has about this file of this name, without what is lost or cannot be read.

        Raises UsageError for a damaged record.
        """
        published = None
        with suppress(ValueError):  # no name of a wheel; `new_wheel` refuses it
            published = self.published(project_of(filename), filename)
        farm = published.farm if published and published.sha256 == sha256 else None
        if farm is None:
            return Kept()
        proofs, statement = (read(self.objects, name) if name else None for name in (farm.proofs, farm.statement))
        kept = Kept(statement=statement or b"", origin=farm.origin)
        with suppress(JsonError):
            kept = replace(kept, proofs=tuple(parse_json(proofs or b"[]", proofs_of)))
        return kept

    def find(self, filename: str) -> Entry:
        """The entry of a wheel; raises UsageError if it is not published.

        A different spelling of the name is enough, such as other capitals in the local version.
        """
        check_wheel_name(filename)
        project, name = project_of(filename), self._spelled(filename)
        entry = self.published(project, name) if name else None
        if entry is None:
            raise UsageError("the index has no such wheel", Code.NOT_IN_INDEX, where=filename)
        return entry

    def projects(self) -> list[str]:
        """The normalized names of the projects, sorted."""
        return self.objects.folders("records")

    def entries(self, project: str) -> list[Entry]:
        """The wheels of a project, from the records, in no order."""
        return _read_entries(self.objects.read_all(f"records/{project}"))

    def listed(self, project: str, path: str = ALL) -> list[Entry]:
        """The wheels that the page of a project lists in this path; empty without a readable page."""
        try:
            return entries_of(self.objects.read(f"{path}/{project}/index.json"))
        except (FileNotFoundError, JsonError):
            return []

    def paths(self) -> list[str]:
        """The paths with pages: `simple`, `cpu`, the CUDA variants that have wheels, and each torch of a variant."""
        tops = self._top_paths()
        below = {top: self.objects.folders(top) for top in tops if is_variant(top)}
        return [*tops, *(f"{top}/{name}" for top, names in below.items() for name in names if is_torch(name))]

    def _top_paths(self) -> list[str]:
        return [name for name in self.objects.names("") if is_path(name)]

    @contextmanager
    def changing(self, project: str) -> Iterator[None]:
        """Note that the records of a project change; afterwards, also after an error, write its pages."""
        mark = f"pending/{project}~{uuid4().hex[:12]}"
        self.objects.write(mark, b"")
        try:
            yield
        finally:
            self.write_pages(project)
            self.objects.delete(mark)

    def finish_interrupted(self) -> list[str]:
        """Write the pages of projects whose last change was interrupted; return their names."""
        marks = self.objects.names("pending")
        projects = sorted({mark.partition("~")[0] for mark in marks})
        if projects:
            self._write_everywhere(projects)
        for mark in marks:
            self.objects.delete(f"pending/{mark}")
        return projects

    def write_all_pages(self) -> None:
        """Write the pages of every project, and the lists of projects."""
        shown = {name for path in (*self.paths(), FOLDER) for name in self.projects_of(path)}
        self._write_everywhere({*self.projects(), *shown})  # the pages of a project without wheels are deleted

    def _write_everywhere(self, projects: Iterable[str]) -> None:
        """Write the pages of projects in all paths, and every list of projects."""
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(partial(self.write_project, paths=self.paths()), projects))
        self.write_lists(self.paths())

    def write_pages(self, project: str) -> None:
        """Write the pages of a project and the lists of projects, until they agree with the records.

        The lists in the paths of a torch are written if the project is new or gone there.
        """
        # The page with all wheels says in which paths the project has pages. It is written last, so the next run
        # deletes what a killed one has left.
        had = {path for entry in self.listed(project) for path in paths_of(entry)}
        self.write_lists(self.write_project(project, {*self._top_paths(), *had}))

    def write_project(self, project: str, paths: Iterable[str]) -> set[str]:
        """Write the pages of a project, and delete those in `paths` that it no longer has.

        Returns the paths whose list may change: every CUDA variant, and the paths in which the project is new or gone.
        Raises UsageError for a damaged record.
        """
        judged, changed = {*paths}, {path for path in paths if "/" not in path}
        for records in _until_stable(lambda: self.objects.read_all(f"records/{project}"), project):
            pages = dict(_pages(project, records))
            stale = {f"{path}/{project}/{name}" for path in judged for name in ("index.html", "index.json")}
            stale.add(f"{FOLDER}/{project}/{HOME}")
            for name in sorted({*pages, *stale}, key=lambda name: _path(name) == ALL):
                if name in pages:
                    self.objects.write(name, pages[name])
                else:
                    self.objects.delete(name)
            listed = {path for path in map(_path, pages) if is_path(path)}
            changed |= listed ^ judged
            judged |= listed
        return changed

    def write_lists(self, paths: Iterable[str]) -> None:
        """Write the lists of projects in these paths, and the first page for people."""
        for path in sorted(paths):
            for projects in _until_stable(partial(self.projects_of, path), path):
                for name, page in root_pages(projects).items():
                    self.objects.write(f"{path}/{name}", page)
        for projects in _until_stable(lambda: self.objects.folders(FOLDER), HOME):
            self.objects.write(HOME, home_page(projects))

    def projects_of(self, path: str) -> list[str]:
        """The projects that have a page in this path."""
        return [name for name in self.objects.folders(path) if not is_torch(name)]


def _until_stable(facts: Callable[[], T], what: str) -> Iterator[T]:
    """The facts to write pages from, again and again until they are the same after the pages were written."""
    for _ in range(_ATTEMPTS):
        yield (found := facts())
        if facts() == found:
            return
    raise BuildfarmError(
        "the records change faster than the pages can be written", Code.NETWORK_UNREACHABLE, where=what
    )


def _pages(project: str, records: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The pages of a project for installers and for people, by path; raises UsageError for a damaged record."""
    entries = _read_entries(records)
    listed = grouped((path, entry) for entry in entries for path in (ALL, *paths_of(entry)))
    yield from project_pages(project, listed)
    if entries:
        yield f"{FOLDER}/{project}/{HOME}", project_page(project, entries)


def _path(page: str) -> str:
    """The path of the page of a project: `cu130` for `cu130/my-ext/index.html`."""
    return page.rsplit("/", 2)[0]


def file_path(sha256: str, filename: str) -> str:
    """The path of a wheel in the index, by the hash of its content: two different files never share a path."""
    return f"files/{sha256[:2]}/{sha256[2:]}/{filename}"


def refuse_other(before: Entry | None, entry: Entry) -> None:
    """Raise ConflictError if a published wheel is a different file than the new one of its name."""
    if before and before.sha256 != entry.sha256:
        raise ConflictError(
            CONFLICT,
            Code.PUBLISHED_FILE_DIFFERS,
            where=entry.filename,
            hints=[
                "if the published wheel is of another project, publish to another index or under another name",
                "for a new release, raise the version in extension.yaml and in the source, and build again; a project"
                " of others has no new version for other GPUs or options: publish to a new index",
                "if the published wheel is the right one, delete the file that you wanted to publish",
            ],
        )


def _read_entries(records: Mapping[str, bytes]) -> list[Entry]:
    """The wheels in the records of a project, by their names; raises UsageError for a damaged record."""
    return [
        _read_record(name, data, records.get(f"{name.removesuffix('.json')}{_YANK}"))
        for name, data in records.items()
        if name.endswith(".json")
    ]


def _read_record(name: str, data: bytes, yank: bytes | None) -> Entry:
    """The wheel in a record, yanked with this reason unless it is None; raises UsageError for a damaged record."""
    try:
        entry = parse_json(data, Entry.from_json)
    except JsonError as error:
        sentence = f"this record of the index cannot be read: {error}"
        hint = "restore the record from a copy of the index, or delete it and publish the wheel again"
        raise UsageError(sentence, Code.FILE_INVALID, where=name, hints=[hint]) from None
    return replace(entry, yanked=None if yank is None else yank.decode(errors="replace"))
