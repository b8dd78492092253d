"""Whether an index is whole: every file has its hash, every page agrees with the records, nothing lies there unused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.proof import proofs_of
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.new_wheel import sbom_of
from builder.publish.index.objects import Objects, read
from builder.publish.index.repository import Repository
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
    pages = _page_faults(repository)
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
            faults += _file_faults(repository.objects, entry)
    unused: list[str] = []
    with suppress(UsageError):  # a damaged record, which is among the faults: which files it names is unknown
        unused = unused_files(repository)
    return IndexCheck(wheels, len(projects), finished, (*faults, *pages), bool(pages), tuple(unused))


def unused_files(repository: Repository) -> list[str]:
    """The folders of `files/` that no record names. A running upload has such a folder for a short time."""
    # Before the records: a wheel that is published meanwhile has a record then.
    starts = [f"files/{start}" for start in repository.objects.names("files")]
    found = [f"{start}/{rest}" for start in starts for rest in repository.objects.names(start)]
    entries = (entry for project in repository.projects() for entry in repository.entries(project))
    used = {entry.path.rpartition("/")[0] for entry in entries}
    return [folder for folder in found if folder not in used]


def abandoned_files(repository: Repository) -> list[str]:
    """The unused files that are older than a day, so that no upload is writing them any more."""
    abandoned = []
    for folder in unused_files(repository):
        for path in (f"{folder}/{name}" for name in repository.objects.names(folder)):
            with suppress(FileNotFoundError):  # somebody else deleted it meanwhile
                if repository.objects.age(path) > _ABANDONED:
                    abandoned.append(path)
    return abandoned


def _file_faults(objects: Objects, entry: Entry) -> Iterator[str]:
    """What is wrong with the wheel, with its METADATA and with its evidence."""
    farm, found, sbom = entry.farm or FarmFacts(), "", b""
    with suppress(FileNotFoundError), objects.local(entry.path) as wheel:
        found = sha256_of(wheel)
        if farm.sbom and found == entry.sha256:
            # Earlier versions published wheels with an SBOM that cannot be read.
            with WheelFile(wheel) as archive, suppress(UsageError):
                sbom = sbom_of(archive)
    metadata = read(objects, f"{entry.path}.metadata")
    beside = "" if metadata is None else hashlib.sha256(metadata).hexdigest()
    for path, sha256, wanted in (
        (entry.path, found, entry.sha256),
        (f"{entry.path}.metadata", beside, entry.metadata_sha256),
    ):
        if not sha256:
            yield f"{path}: the file is missing"
        elif sha256 != wanted:
            yield f"{path}: the content changed: its sha256 is {sha256}, the record says {wanted}"
    checks: list[tuple[str, Callable[[bytes], str]]] = [
        (farm.proofs, lambda data: _proofs_fault(data, entry.sha256)),
        (farm.statement, lambda data: statement_fault(data, entry.sha256)),
        (farm.sbom, lambda data: "" if data == sbom else "the SBOM differs from the one in the wheel"),
    ]
    for path, fault_of in checks:
        data = read(objects, path) if path else None
        if data is None and path:
            yield f"{path}: the file is missing"
        elif data is not None and (fault := fault_of(data)):
            yield f"{path}: {fault}; `buildfarm publish` of the wheel writes it again"


def _proofs_fault(data: bytes, sha256: str) -> str:
    try:
        proofs = parse_json(data, proofs_of)
    except JsonError as error:
        return f"the proofs cannot be read: {error}"
    if not proofs:
        return "the proofs cannot be read: there is none"
    return "" if all(proof.wheel == sha256 for proof in proofs) else "these are proofs of a different file"


class _Comparing(Repository):
    """An index whose pages are compared with those that would be written, and stay as they are."""

    def __init__(self, objects: Objects) -> None:
        super().__init__(objects)
        self.faults: list[str] = []

    def put_page(self, name: str, page: bytes | None) -> None:
        """Note what is wrong with a page."""
        found = read(self.objects, name)
        if found != page and found is None:
            self.faults.append(f"{name}: the page is missing")
        elif found != page and page is None:
            self.faults.append(f"{name}: the page is of no project")
        elif found != page:
            self.faults.append(f"{name}: the page was changed, or a different version of buildfarm wrote it")


def _page_faults(repository: Repository) -> list[str]:
    """Each page that `write_all_pages` would add, change or delete.

    Pages of a project with a damaged record are not judged, and lists of projects only if there is no such project.
    """
    comparing, damaged = _Comparing(repository.objects), False
    shown = {path: repository.projects_of(path) for path in repository.paths()}
    lists = {*shown}
    for project in sorted(repository.shown()):
        try:
            lists |= comparing.write_project(project, [path for path, names in shown.items() if project in names])
        except UsageError:  # a damaged record
            damaged = True
    if not damaged:
        comparing.write_lists(lists)
    return sorted(comparing.faults)
