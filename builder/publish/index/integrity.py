"""Whether an index is whole: every file has its hash, every page agrees with the records, nothing lies there unused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from builder.publish.index.entry import Entry
from builder.publish.index.repository import ALL, Repository, paths_of

#: Seconds after which a file without a record belongs to no running upload.
_ABANDONED = 24 * 3600


@dataclass(frozen=True)
class IndexCheck:
    """The result of a check of an index.

    Attributes:
        wheels: number of published wheels.
        projects: number of projects.
        finished: projects whose interrupted change was finished now.
        faults: a sentence for each damaged or missing file and for each wrong page.
        unused: paths of files that no record names; a killed upload leaves such files.

    """

    wheels: int
    projects: int
    finished: tuple[str, ...]
    faults: tuple[str, ...]
    unused: tuple[str, ...]


def check_index(repository: Repository) -> IndexCheck:
    """Finish interrupted changes, then read every file and every page. Changes nothing else."""
    finished = tuple(repository.finish_interrupted())
    faults: list[str] = []
    wheels = 0
    projects = repository.projects()
    for project in projects:
        entries = repository.entries(project)
        wheels += len(entries)
        for entry in entries:
            faults += _file_faults(repository, entry)
        faults += _page_faults(repository, project, entries)
    for path in repository.paths():
        faults += _root_faults(repository, path)
    return IndexCheck(wheels, len(projects), finished, tuple(faults), tuple(unused_files(repository)))


def unused_files(repository: Repository) -> list[str]:
    """The folders of `files/` that no record names. A running upload has such a folder for a short time."""
    found = list(_file_folders(repository))  # before the records: a wheel that is published meanwhile has a record then
    entries = (entry for project in repository.projects() for entry in repository.entries(project))
    used = {entry.path.rpartition("/")[0] for entry in entries}
    return [folder for folder in found if folder not in used]


def abandoned_files(repository: Repository) -> list[str]:
    """The unused files that are older than a day, so that no upload is writing them any more."""
    paths = (f"{folder}/{name}" for folder in unused_files(repository) for name in repository.objects.names(folder))
    return [path for path in paths if repository.objects.age(path) > _ABANDONED]


def _file_faults(repository: Repository, entry: Entry) -> Iterator[str]:
    """What is wrong with the wheel and with its METADATA."""
    for path, wanted in ((entry.path, entry.sha256), (f"{entry.path}.metadata", entry.metadata_sha256)):
        try:
            found = hashlib.sha256(repository.objects.read(path)).hexdigest()
        except FileNotFoundError:
            yield f"{path}: the file is missing"
            continue
        if found != wanted:
            yield f"{path}: the content changed: its sha256 is {found}, the record says {wanted}"
    farm = entry.farm
    for path in (farm.proofs, farm.statement, farm.sbom) if farm else ():
        if path and not repository.objects.exists(path):
            yield f"{path}: the file is missing"


def _page_faults(repository: Repository, project: str, entries: list[Entry]) -> Iterator[str]:
    """Pages of a project that do not list exactly the wheels of its records."""
    for path in sorted({ALL, *repository.paths(), *(path for entry in entries for path in paths_of(entry))}):
        wanted = {entry.filename: entry for entry in entries if path == ALL or path in paths_of(entry)}
        listed = {entry.filename: entry for entry in repository.listed(project, path)}
        for name in sorted(wanted.keys() | listed.keys()):
            if wanted.get(name) != listed.get(name):
                yield f"{path}/{project}: the page does not agree with the record of {name}"


def _root_faults(repository: Repository, path: str) -> Iterator[str]:
    """Projects that the list of projects lacks, or lists without a page."""
    try:
        listed = {one["name"] for one in json.loads(repository.objects.read(f"{path}/index.json"))["projects"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        yield f"{path}/index.json: the page is missing or damaged"
        return
    for project in sorted(listed ^ set(repository.projects_of(path))):
        yield f"{path}: the list of projects does not agree with the page of {project}"


def _file_folders(repository: Repository) -> Iterator[str]:
    for start in repository.objects.names("files"):
        for rest in repository.objects.names(f"files/{start}"):
            yield f"files/{start}/{rest}"
