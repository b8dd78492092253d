"""Whether an index is whole: every file has its hash, every page agrees with the records, nothing lies there unused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from builder.errors import UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import Status
from builder.publish.index.repository import ALL, Repository, paths_of
from builder.publish.people.people_pages import FOLDER, PLANS, read_plan
from builder.untrusted import JsonError, parse_json, text

#: Seconds after which a file without a record belongs to no running upload.
_ABANDONED = 24 * 3600


@dataclass(frozen=True)
class IndexCheck:
    """The result of a check of an index."""

    #: Number of published wheels.
    wheels: int
    #: Number of projects.
    projects: int
    #: Projects whose interrupted change was finished now.
    finished: tuple[str, ...]
    #: A sentence for each damaged or missing file and for each wrong page.
    faults: tuple[str, ...]
    #: Whether `faults` has pages that disagree with the records or are missing: they can be written again.
    wrong_pages: bool
    #: Paths of files that no record names; a killed upload leaves such files.
    unused: tuple[str, ...]


def check_index(repository: Repository) -> IndexCheck:
    """Finish interrupted changes, then read every file and every page. Changes nothing else."""
    finished = tuple(repository.finish_interrupted())
    faults: list[str] = []
    pages: list[str] = []
    wheels = 0
    projects = repository.projects()
    for project in projects:
        try:
            entries, status = repository.entries(project), repository.status(project)
        except UsageError as error:
            faults.append(f"records/{project}/{error}")
            continue
        wheels += len(entries)
        for entry in entries:
            faults += _file_faults(repository, entry)
        pages += _page_faults(repository, project, entries, status)
    for path in repository.paths():
        pages += _root_faults(repository, path)
    pages += _people_faults(repository)
    faults += _plan_faults(repository)
    try:
        unused = unused_files(repository)
    except UsageError:  # a damaged record, which is among the faults: which files it names is unknown
        unused = []
    return IndexCheck(wheels, len(projects), finished, (*faults, *pages), bool(pages), tuple(unused))


def unused_files(repository: Repository) -> list[str]:
    """The folders of `files/` that no record names. A running upload has such a folder for a short time."""
    found = list(_file_folders(repository))  # before the records: a wheel that is published meanwhile has a record then
    entries = (entry for project in repository.projects() for entry in repository.entries(project))
    used = {entry.path.rpartition("/")[0] for entry in entries}
    return [folder for folder in found if folder not in used]


def abandoned_files(repository: Repository) -> list[str]:
    """The unused files that are older than a day, so that no upload is writing them any more."""
    paths = (f"{folder}/{name}" for folder in unused_files(repository) for name in repository.objects.names(folder))
    return [path for path in paths if _is_abandoned(repository, path)]


def _is_abandoned(repository: Repository, path: str) -> bool:
    try:
        return repository.objects.age(path) > _ABANDONED
    except FileNotFoundError:  # somebody else deleted it meanwhile
        return False


def _file_faults(repository: Repository, entry: Entry) -> Iterator[str]:
    """What is wrong with the wheel and with its METADATA."""
    for path, wanted in ((entry.path, entry.sha256), (f"{entry.path}.metadata", entry.metadata_sha256)):
        found = hashlib.sha256()
        try:
            for chunk in repository.objects.chunks(path):
                found.update(chunk)
        except FileNotFoundError:
            yield f"{path}: the file is missing"
            continue
        if found.hexdigest() != wanted:
            yield f"{path}: the content changed: its sha256 is {found.hexdigest()}, the record says {wanted}"
    farm = entry.farm
    for path in (farm.proofs, farm.statement, farm.sbom) if farm else ():
        if path and not repository.objects.exists(path):
            yield f"{path}: the file is missing"


def _page_faults(repository: Repository, project: str, entries: list[Entry], status: Status) -> Iterator[str]:
    """Pages of a project that do not list exactly the wheels of its records, or any wheel of a quarantined project."""
    for path in sorted({ALL, *repository.paths(), *(path for entry in entries for path in paths_of(entry))}):
        shown = {entry.filename: entry for entry in entries if path == ALL or path in paths_of(entry)}
        wanted = shown if status.offers_files else {}
        listed = {entry.filename: entry for entry in repository.listed(project, path)}
        for name in sorted(wanted.keys() | listed.keys()):
            if wanted.get(name) != listed.get(name):
                yield f"{path}/{project}: the page does not agree with the record of {name}"
        if shown:
            yield from _missing_page(repository, f"{path}/{project}")


def _root_faults(repository: Repository, path: str) -> Iterator[str]:
    """Projects that the list of projects lacks, or lists without a page."""
    try:
        page = repository.objects.read(f"{path}/index.json")
        listed = parse_json(page, lambda data: {text(one["name"]) for one in data["projects"]})
    except (FileNotFoundError, JsonError):
        yield f"{path}/index.json: the page is missing or damaged"
        return
    yield from _missing_page(repository, path)
    for project in sorted(listed ^ set(repository.projects_of(path))):
        yield f"{path}: the list of projects does not agree with the page of {project}"


def _plan_faults(repository: Repository) -> Iterator[str]:
    """Plans that cannot be read."""
    for project in repository.objects.names(PLANS):
        if read_plan(repository.objects, project) is None:
            yield f"{PLANS}/{project}: the plan cannot be read; `buildfarm publish` with its matrix replaces it"


def _people_faults(repository: Repository) -> Iterator[str]:
    """Projects without a page for people or with a page too many."""
    shown = {*repository.projects_of(ALL), *repository.objects.names(PLANS)}
    found = set(repository.objects.folders(FOLDER))
    for project in sorted(shown ^ found):
        yield f"{FOLDER}/{project}: the page for people is {'missing' if project in shown else 'of no project'}"
    for project in sorted(shown & found):
        yield from _missing_page(repository, f"{FOLDER}/{project}")


def _missing_page(repository: Repository, folder: str) -> Iterator[str]:
    """The HTML page of a folder, if it is missing: pip reads these pages in an index without a server."""
    if not repository.objects.exists(f"{folder}/index.html"):
        yield f"{folder}/index.html: the page is missing"


def _file_folders(repository: Repository) -> Iterator[str]:
    for start in repository.objects.names("files"):
        for rest in repository.objects.names(f"files/{start}"):
            yield f"files/{start}/{rest}"
