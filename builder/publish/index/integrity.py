"""Whether an index is whole: every file has its hash, every page agrees with the records, nothing lies there unused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from builder.errors import UsageError
from builder.proof import proofs_of
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.objects import Folder, Objects, read
from builder.publish.index.pages import entries_of, root_pages
from builder.publish.index.repository import Repository
from builder.publish.index.wheel_file import sbom_of
from builder.publish.people.people_pages import FOLDER, HOME, SUMMARIES, home_page, people_paths
from builder.publish.people.plans import PLANS, read_plan
from builder.publish.provenance import statement_fault
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.archive import WheelFile

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
    pages = list(_page_faults(repository))
    if pages:  # a publisher may write pages meanwhile: what is wrong twice is wrong
        again = set(_page_faults(repository))
        pages = [fault for fault in pages if fault in again]
    faults: list[str] = []
    wheels = 0
    projects = repository.projects()
    for project in projects:
        try:
            entries = repository.entries(project)
        except UsageError as error:
            faults.append(f"records/{project}/{error}")
            continue
        wheels += len(entries)
        for entry in entries:
            faults += _file_faults(repository, entry)
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
    """What is wrong with the wheel, with its METADATA and with its evidence."""
    objects = repository.objects
    with _copy(objects, entry) as copy:
        found = list(_hash_faults(objects, entry.path, entry.sha256, copy))
        yield from found
        yield from _hash_faults(objects, f"{entry.path}.metadata", entry.metadata_sha256)
        sbom = b"" if found or copy is None else _sbom_inside(entry, copy)
    farm = entry.farm or FarmFacts()
    checks: list[tuple[str, Callable[[bytes], str]]] = [
        (farm.proofs, lambda data: _proofs_fault(data, entry.sha256)),
        (farm.statement, lambda data: statement_fault(data, entry.sha256)),
        (farm.sbom, lambda data: _sbom_fault(data, sbom)),
    ]
    for path, fault_of in checks:
        data = read(objects, path) if path else None
        if data is None and path:
            yield f"{path}: the file is missing"
        elif data is not None and (fault := fault_of(data)):
            yield f"{path}: {fault}; `buildfarm publish` of the wheel writes it again"


@contextmanager
def _copy(objects: Objects, entry: Entry) -> Iterator[IO[bytes] | None]:
    """The file of a wheel whose SBOM is compared: in a folder the file itself, else an empty one for its bytes.

    None: it is not needed, or missing.
    """
    path = objects.root / entry.path if isinstance(objects, Folder) else None
    if not (entry.farm and entry.farm.sbom) or (path and not path.is_file()):
        yield None
        return
    with path.open("rb") if path else TemporaryFile() as stream:
        yield stream


def _hash_faults(objects: Objects, path: str, wanted: str, copy: IO[bytes] | None = None) -> Iterator[str]:
    """Whether a file has its hash; its bytes are written to `copy`, if this can be written."""
    found = hashlib.sha256()
    try:
        for chunk in objects.chunks(path):
            found.update(chunk)
            if copy and copy.writable():
                copy.write(chunk)
    except FileNotFoundError:
        yield f"{path}: the file is missing"
        return
    if found.hexdigest() != wanted:
        yield f"{path}: the content changed: its sha256 is {found.hexdigest()}, the record says {wanted}"


def _proofs_fault(data: bytes, sha256: str) -> str:
    try:
        proofs = parse_json(data, proofs_of)
    except JsonError as error:
        return f"the proofs cannot be read: {error}"
    if not proofs:
        return "the proofs cannot be read: there is none"
    return "" if all(proof.wheel == sha256 for proof in proofs) else "these are proofs of a different file"


def _sbom_inside(entry: Entry, stream: IO[bytes]) -> bytes:
    """The SBOM inside the wheel; nothing if it has none that can be read, as earlier versions published."""
    with WheelFile(Path(entry.filename), stream) as archive, suppress(UsageError):
        return sbom_of(archive)
    return b""


def _sbom_fault(data: bytes, in_wheel: bytes) -> str:
    if in_wheel:
        return "" if data == in_wheel else "the SBOM differs from the one in the wheel"
    try:
        parse_json(data, dict)
    except JsonError as error:
        return f"the SBOM cannot be read: {error}"
    return ""


def _page_faults(repository: Repository) -> Iterator[str]:
    """Each page that `write_all_pages` would add, change or delete; of a project with a damaged record, no page."""
    objects = repository.objects
    shown = {place: set(repository.projects_of(place)) for place in (*repository.paths(), FOLDER)}
    summaries = objects.read_all(SUMMARIES)
    wanted: dict[str, set[str]] = {place: set() for place in shown}
    wanted_summaries: dict[str, bytes] = {}
    for project in sorted({*repository.projects(), *objects.names(PLANS)}):
        pages, unknown = _wanted_pages(repository, project)
        for place in unknown:
            wanted[place] |= shown[place] & {project}
        if FOLDER in unknown and project in summaries:
            wanted_summaries[project] = summaries[project]
        for name, data in sorted(pages.items()):
            place = name.rpartition("/")[0].rpartition("/")[0] or SUMMARIES
            if place == SUMMARIES:
                wanted_summaries[project] = data
            else:
                wanted.setdefault(place, set()).add(project)
            yield from _differences(objects, name, data)
    for place, projects in sorted(wanted.items()):
        for project in sorted(shown.get(place, set()) - projects):
            yield from _needless(objects, f"{place}/{project}")
        for name, data in root_pages(sorted(projects)).items() if place != FOLDER else ():
            yield from _differences(objects, f"{place}/{name}", data)
    for project in sorted(summaries.keys() - wanted_summaries.keys()):
        yield f"{SUMMARIES}/{project}: the index has no plan of this project"
    yield from _differences(objects, HOME, home_page(sorted(wanted[FOLDER]), wanted_summaries))


def _wanted_pages(repository: Repository, project: str) -> tuple[dict[str, bytes], set[str]]:
    """The pages of a project by path, and the places whose page of it is unknown because a record is damaged."""
    try:
        pages = repository.wanted_pages(project)
    except UsageError:
        return {}, {*repository.paths(), FOLDER}
    if not _is_plan_damaged(repository, project):
        return pages, set()
    people = people_paths(project)
    return {name: data for name, data in pages.items() if name not in people}, {FOLDER}


def _differences(objects: Objects, name: str, wanted: bytes) -> Iterator[str]:
    """What is wrong with a page: the wheels that it lists wrongly, if it can be read."""
    found = read(objects, name)
    if found is None:
        yield f"{name}: the page is missing"
    elif found != wanted:
        wheels = _wrong_wheels(found, wanted)
        folder = name.rpartition("/")[0]
        yield from (f"{folder}: the page does not agree with the record of {wheel}" for wheel in wheels)
        if not wheels:
            yield f"{name}: the page was changed, or a different version of buildfarm wrote it"


def _wrong_wheels(found: bytes, wanted: bytes) -> list[str]:
    """The wheels that the JSON page of a project lists differently; none for other pages and for damaged ones."""
    try:
        right, listed = ({entry.filename: entry for entry in entries_of(page)} for page in (wanted, found))
    except JsonError:
        return []
    return sorted(name for name in right.keys() | listed.keys() if right.get(name) != listed.get(name))


def _needless(objects: Objects, folder: str) -> Iterator[str]:
    """The pages in a folder of a project that has none there."""
    for name in ("index.html", "index.json"):
        if objects.exists(f"{folder}/{name}"):
            yield f"{folder}/{name}: the page is of no project"


def _plan_faults(repository: Repository) -> Iterator[str]:
    """Plans that cannot be read."""
    for project in repository.objects.names(PLANS):
        if _is_plan_damaged(repository, project):
            yield f"{PLANS}/{project}: the plan cannot be read; `buildfarm publish` with its matrix replaces it"


def _is_plan_damaged(repository: Repository, project: str) -> bool:
    return repository.objects.exists(f"{PLANS}/{project}") and read_plan(repository.objects, project) is None


def _file_folders(repository: Repository) -> Iterator[str]:
    for start in repository.objects.names("files"):
        for rest in repository.objects.names(f"files/{start}"):
            yield f"files/{start}/{rest}"
