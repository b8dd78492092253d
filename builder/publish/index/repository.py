"""The published wheels of an index, and its pages.

    files/AB/CDEF…/WHEEL        the wheel, by its sha256, with WHEEL.metadata, .proofs.json, .intoto.json and .cdx.json
    records/PROJECT/WHEEL.json  its entry: the wheel is published from the moment this object exists
    records/PROJECT/WHEEL.yank  its reason: the wheel is yanked while this object exists
    pending/PROJECT~ID          some process is between a change of the records and the pages
    simple/, cu130/, cpu/       pages for installers: all wheels, and those of each CUDA variant
    index.html, projects/       pages for people

The records are the only truth; pages are made from them. No lock is needed: whoever changes a record writes the pages
afterwards and repeats this while the records change. So the last writer of a page has seen every record. This needs
storage that lists an object as soon as it is written, as folders and S3 do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from builder.errors import BuildfarmError, UsageError
from builder.publish.index.entry import Entry, project_of
from builder.publish.index.objects import Objects
from builder.publish.index.pages import Status, entries_of, project_pages, root_pages
from builder.publish.people.people_pages import FOLDER, home_page, project_page

_YANK = ".yank"
_STATUS = "status"
#: The path with every wheel, and the path of wheels without CUDA. Each CUDA variant has a path of its name.
ALL, WITHOUT_CUDA = "simple", "cpu"
#: Retries while others change the same project. Each retry means that somebody else has finished a change.
_ATTEMPTS = 1000


class ConflictError(BuildfarmError):
    """The index has a different wheel under this file name. A published file never changes."""


@dataclass(frozen=True)
class NewWheel:
    """A wheel to publish.

    Attributes:
        wheel: the file.
        entry: its entry, without a path.
        attached: contents of the files beside the wheel, by the suffix of their name, such as `.metadata`.

    """

    wheel: Path
    entry: Entry
    attached: dict[str, bytes]


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
        before = self._record(name)
        _refuse_other(before, entry)
        with self.changing(entry.project):
            self.objects.create(entry.path, new.wheel)
            for suffix, data in new.attached.items():
                self.objects.write(entry.path + suffix, data)
            data = _dump(replace(entry, uploaded=before.uploaded) if before else entry)
            created = self.objects.create(name, data)
            if not created:
                _refuse_other(self._record(name), entry)
                if update:
                    self.objects.write(name, data)
        return created

    def yank(self, filename: str, reason: str | None) -> None:
        """Yank a wheel with a reason (PEP 592), or undo it with None; raises UsageError for an unknown wheel."""
        entry = self.find(filename)
        name = f"records/{entry.project}/{filename}{_YANK}"
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
                self.objects.delete(f"records/{entry.project}/{filename}{suffix}")
        folder = entry.path.rpartition("/")[0]
        for name in self.objects.names(folder):
            self.objects.delete(f"{folder}/{name}")

    def set_status(self, project: str, status: Status) -> None:
        """Set the status of a project (PEP 792); `active` needs no record."""
        with self.changing(project):
            if status.name == "active":
                self.objects.delete(f"records/{project}/{_STATUS}")
            else:
                self.objects.write(f"records/{project}/{_STATUS}", json.dumps([status.name, status.reason]).encode())

    def published(self, project: str, filename: str) -> Entry | None:
        """The entry of a wheel as it was published, without its yank; None if it is not published."""
        return self._record(f"records/{project}/{filename}.json")

    def find(self, filename: str) -> Entry:
        """The entry of a wheel as it was published, without its yank; raises UsageError if it is not published."""
        try:
            project = project_of(filename)
        except ValueError as error:
            raise UsageError(str(error), where=filename) from None
        entry = self.published(project, filename)
        if entry is None:
            raise UsageError("the index has no such wheel", where=filename)
        return entry

    def projects(self) -> list[str]:
        """The normalized names of the projects, sorted."""
        return self.objects.names("records")

    def entries(self, project: str) -> list[Entry]:
        """The wheels of a project, from the records, in no order."""
        return _entries(self.objects.read_all(f"records/{project}"))

    def listed(self, project: str, path: str = ALL) -> list[Entry]:
        """The wheels that the page of a project lists in this path; empty without a readable page."""
        try:
            return entries_of(self.objects.read(f"{path}/{project}/index.json"))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []

    def paths(self) -> list[str]:
        """The folders with pages: `simple`, `cpu` and the CUDA variants that have wheels."""
        return [name for name in self.objects.names("") if name in {ALL, WITHOUT_CUDA} or is_variant(name)]

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
        for project in projects:
            self.write_pages(project)
        for mark in marks:
            self.objects.delete(f"pending/{mark}")
        return projects

    def write_all_pages(self) -> None:
        """Write the pages of every project, and the lists of projects."""
        for project in self.projects():
            self._write_until_stable(project)
        self._write_roots()

    def write_pages(self, project: str) -> None:
        """Write the pages of a project and the lists of projects, until they agree with the records."""
        self._write_until_stable(project)
        self._write_roots()

    def _write_until_stable(self, project: str) -> None:
        for _ in range(_ATTEMPTS):
            records = self.objects.read_all(f"records/{project}")
            self._write_project(project, records)
            if self.objects.read_all(f"records/{project}") == records:
                return
        raise BuildfarmError("the records change faster than the pages can be written", where=project)

    def _write_project(self, project: str, records: dict[str, bytes]) -> None:
        entries, status = _entries(records), _status(records)
        wanted = {ALL, *(path for entry in entries for path in paths_of(entry))} if entries else set()
        for path in wanted:
            members = [entry for entry in entries if path == ALL or path in paths_of(entry)]
            self._write(f"{path}/{project}", project_pages(project, members, status))
        for path in set(self.paths()) - wanted:
            for name in ("index.html", "index.json"):
                self.objects.delete(f"{path}/{project}/{name}")
        if entries:
            self._write(f"{FOLDER}/{project}", {"index.html": project_page(project, entries)})
        else:
            self.objects.delete(f"{FOLDER}/{project}/index.html")

    def _write_roots(self) -> None:
        for path in self.paths():
            for _ in range(_ATTEMPTS):
                projects = self.projects_of(path)
                self._write(path, root_pages(projects))
                if path == ALL:
                    self._write("", {"index.html": home_page(projects)})
                if self.projects_of(path) == projects:
                    break

    def projects_of(self, path: str) -> list[str]:
        """The projects that have a page in this path."""
        return [name for name in self.objects.names(path) if not name.startswith("index.")]

    def _write(self, folder: str, pages: dict[str, bytes]) -> None:
        """Write pages that changed."""
        for name, data in pages.items():
            try:
                same = self.objects.read(f"{folder}/{name}".lstrip("/")) == data
            except FileNotFoundError:
                same = False
            if not same:
                self.objects.write(f"{folder}/{name}".lstrip("/"), data)

    def _record(self, name: str) -> Entry | None:
        try:
            return Entry.from_json(json.loads(self.objects.read(name)))
        except FileNotFoundError:
            return None


def file_path(sha256: str, filename: str) -> str:
    """The path of a wheel in the index, by the hash of its content: two different files never share a path."""
    return f"files/{sha256[:2]}/{sha256[2:]}/{filename}"


def paths_of(entry: Entry) -> tuple[str, ...]:
    """The paths that list a wheel besides `simple`."""
    return (entry.farm.cuda if entry.farm else ()) or (WITHOUT_CUDA,)


def is_variant(name: str) -> bool:
    """Whether this is the name of a CUDA variant: `cu130`, or `cu13` for every CUDA of one major version."""
    return name.startswith("cu") and name[2:].isdigit()


def _entries(records: dict[str, bytes]) -> list[Entry]:
    entries = []
    for name, data in records.items():
        if name.endswith(".json"):
            entry = Entry.from_json(json.loads(data))
            yanked = records.get(f"{entry.filename}{_YANK}")
            entries.append(replace(entry, yanked=None if yanked is None else yanked.decode()))
    return entries


def _status(records: dict[str, bytes]) -> Status:
    return Status(*json.loads(records[_STATUS])) if _STATUS in records else Status()


def _refuse_other(before: Entry | None, entry: Entry) -> None:
    if before and before.sha256 != entry.sha256:
        raise ConflictError(
            "the index has a different wheel of this name; a published file never changes",
            where=entry.filename,
            hints=["raise the version in extension.yaml and in the source, and build again"],
        )


def _dump(entry: Entry) -> bytes:
    return (json.dumps(entry.to_json(), indent=1) + "\n").encode()
