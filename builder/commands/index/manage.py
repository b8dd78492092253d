"""`buildfarm yank`, `unyank` and `buildfarm index`: change and check what is published."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import UsageError
from builder.log import print_warning
from builder.publish.index.entry import Entry
from builder.publish.index.objects.place import open_objects
from builder.publish.index.pages import Status
from builder.publish.index.repository import Repository


def yank_wheels(repository: Repository, what: str, reason: str | None) -> list[str]:
    """Yank wheels with a reason, or undo it with None; return their file names.

    `what` is a file name or NAME==VERSION. Warns if a pin to the public version now installs a wheel for a different
    CUDA from the path with all wheels. Raises UsageError if the index has no such wheel.
    """
    chosen = find_wheels(repository, what)
    for entry in chosen:
        repository.yank(entry.filename, reason)
    if reason is not None:
        _warn_of_substitutes(repository, chosen)
    return [entry.filename for entry in chosen]


def find_wheels(repository: Repository, what: str) -> list[Entry]:
    """The published wheels of a file name or of NAME==VERSION; raises UsageError if there is none."""
    if what.endswith(".whl"):
        return [repository.find(what)]
    try:
        requirement = Requirement(what)
    except InvalidRequirement:
        requirement = None
    if requirement is None or not str(requirement.specifier).startswith("=="):
        raise UsageError("pass the file name of a wheel, or NAME==VERSION", where=what)
    found = [
        entry
        for entry in repository.entries(canonicalize_name(requirement.name))
        if requirement.specifier.contains(entry.version, prereleases=True)
    ]
    if not found:
        raise UsageError("the index has no such wheel", where=what)
    return sorted(found, key=lambda entry: entry.filename)


def old_wheels(repository: Repository, keep: int) -> list[str]:
    """File names of the wheels that are not of the `keep` newest versions of their project, sorted.

    Versions that differ only in their local part, such as 1.0+cu121 and 1.0+cu124, count as one.
    """
    old = []
    for project in repository.projects():
        entries = repository.entries(project)
        kept = sorted({_public(entry) for entry in entries}, reverse=True)[:keep]
        old += [entry.filename for entry in entries if _public(entry) not in kept]
    return sorted(old)


def _public(entry: Entry) -> Version:
    """The version without its local part."""
    return Version(entry.version.public)


def _warn_of_substitutes(repository: Repository, yanked: Sequence[Entry]) -> None:
    """Installers that ask the path with all wheels for `==1.0` take the highest local version that is not yanked."""
    for project, public in sorted({(entry.project, entry.version.public) for entry in yanked}):
        left = [
            entry
            for entry in repository.entries(project)
            if entry.version.public == public and entry.yanked is None and entry.version.local
        ]
        if left:
            best = max(left, key=lambda entry: entry.version)
            print_warning(
                f"installers that use simple/ now get {best.version} for {project}=={public}, for any CUDA; to get"
                " wheels for one CUDA only, use a path such as cu130/"
            )


def set_status(repository: Repository, project: str, status: str, reason: str) -> None:
    """Set the status of a project (PEP 792); raises UsageError for an unknown project."""
    name = canonicalize_name(project)
    if not repository.entries(name):
        raise UsageError("the index has no such project", where=project)
    repository.set_status(name, Status(status, reason))


def open_index(place: str) -> Repository:
    """The index in a folder or bucket that exists; raises UsageError, and MissingToolError as `open_objects` does."""
    objects = open_objects(place)
    if not objects.names("records") and not objects.names("pending"):
        raise UsageError(
            "this place contains no index", where=place, hints=[f"`buildfarm publish --to {place}` makes an index"]
        )
    return Repository(objects)
