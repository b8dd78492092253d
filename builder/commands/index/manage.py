"""`buildfarm yank` and `buildfarm index`: change and check what is published."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import Code, Exit, UsageError
from builder.formats import sha256_of
from builder.gate.amounts import counted
from builder.log import print_data
from builder.option import argument, flag, option
from builder.publish.index.objects import Objects, open_objects, read
from builder.publish.index.pages import Entry
from builder.publish.index.repository import Repository
from builder.untrusted import control_character

#: Seconds after which a file without a record belongs to no running upload.
_ABANDONED = 24 * 3600
_PLACE = {"metavar": "DIR|URL", "help": "The index: its folder, or s3://BUCKET/PREFIX."}


@dataclass(frozen=True, kw_only=True)
class YankOptions:
    """The options of `buildfarm yank`."""

    what: str = argument("A wheel's file name, or NAME==VERSION.", "WHEEL")
    index: str = option(**_PLACE, default=...)
    reason: str = option("Why, in one line; installers print it.", "TEXT", default="")
    undo: bool = flag("Offer yanked wheels again.")


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """The options of `buildfarm index check` and `buildfarm index write-pages`."""

    index: str = argument(**_PLACE)


@dataclass(frozen=True, kw_only=True)
class PruneOptions(IndexOptions):
    """The options of `buildfarm index prune`."""

    keep: int | None = option("Keep the N newest versions that count, and what is newer. Default: all.", "N", min=1)
    dry_run: bool = False


def yank(options: YankOptions) -> None:
    """Mark wheels of an index as yanked: installers choose them only if their exact version is asked for (PEP 592).

    Examples:
        buildfarm yank my_ext==1.0+cu130 --index index --reason 'wrong results on sm_120'
        buildfarm yank my_ext-1.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl --index index
        buildfarm yank my_ext==1.0+cu130 --index index --undo
    """
    if options.undo and options.reason:
        raise UsageError("cannot be combined with --reason", Code.COMMAND_LINE_INVALID, where="--undo")
    if found := control_character(options.reason):  # installers print the reason on a terminal
        sentence = f"a reason is one line without control characters; this one has {found!a}"
        raise UsageError(sentence, Code.VALUE_INVALID, where="--reason")
    repository = open_index(options.index)
    for entry in find_wheels(repository, options.what):
        repository.yank(entry.filename, None if options.undo else options.reason)
        print_data(f"{'unyanked' if options.undo else 'yanked'} {entry.filename}\n")


def check(options: IndexOptions) -> Exit:
    """Compare every wheel and its METADATA with their hashes, and finish what a killed command left undone.

    Examples:
        buildfarm index check index
    """
    result = check_index(open_index(options.index))
    lines = [*(f"finished the interrupted change of {project}" for project in result.finished), *result.faults]
    counts = ((result.projects, "project"), (result.wheels, "wheel"), (len(result.faults), "fault"))
    lines.append("checked: " + ", ".join(counted(count, noun) for count, noun in counts))
    print_data("\n".join(lines) + "\n")
    return Exit.FAILED if result.faults else Exit.OK


def write_pages(options: IndexOptions) -> None:
    """Write all pages again from the records of the wheels: after an update of buildfarm, or if a page was changed.

    Examples:
        buildfarm index write-pages index
    """
    open_index(options.index).write_all_pages()


def prune(options: PruneOptions) -> None:
    """Delete old versions of each project, and files of killed uploads that are older than a day.

    A version is deleted if N newer versions of its project count; without --keep, none is. A version counts if it is
    no pre-release and has a wheel that is not yanked. If a project has only pre-releases that are not yanked, these
    count.

    Examples:
        buildfarm index prune index --keep 3 --dry-run
    """
    repository = open_index(options.index)
    old = _old_wheels(repository, options.keep) if options.keep else []
    unused = abandoned_files(repository)
    if not options.dry_run:
        for name in old:
            repository.remove(name)
        for path in unused:
            repository.objects.delete(path)
    what = "would delete" if options.dry_run else "deleted"
    print_data("".join(f"{what} {name}\n" for name in [*old, *unused]) or f"{what} nothing\n")


COMMANDS = {"check": check, "write-pages": write_pages, "prune": prune}


def open_index(place: str) -> Repository:
    """The index in a folder or bucket that exists; raises UsageError, and MissingToolError as `open_objects` does."""
    objects = open_objects(place)
    if not objects.names("records") and not objects.names("pending"):
        hint = f"`buildfarm publish --to {shlex.quote(place)}` makes an index"
        raise UsageError("this place contains no index", Code.NO_INDEX, where=place, hints=[hint])
    return Repository(objects)


def find_wheels(repository: Repository, what: str) -> list[Entry]:
    """The wheels of a file name or of NAME==VERSION, sorted by name; raises UsageError if the index has none."""
    if what.endswith(".whl"):
        return [repository.find(what)]
    try:
        requirement = Requirement(what)
    except InvalidRequirement:
        requirement = None
    if requirement is None or not str(requirement.specifier).startswith("=="):
        raise UsageError("pass the file name of a wheel, or NAME==VERSION", Code.VALUE_INVALID, where=what)
    found = [
        entry
        for entry in repository.entries(canonicalize_name(requirement.name))
        if requirement.specifier.contains(entry.version, prereleases=True)
    ]
    if not found:
        raise UsageError("the index has no such wheel", Code.NOT_IN_INDEX, where=what)
    return sorted(found, key=lambda entry: entry.filename)


def _old_wheels(repository: Repository, keep: int) -> list[str]:
    """File names of the wheels of versions for which `keep` newer versions count, sorted. The help says what counts.

    Versions that differ only in their local part, such as 1.0+cu121 and 1.0+cu124, count as one.
    """
    old = []
    for project in repository.projects():
        versions = [(entry, Version(entry.version.public)) for entry in repository.entries(project)]
        offered = {version for entry, version in versions if entry.yanked is None}
        counting = list(SpecifierSet().filter(offered))  # the stable ones; of a project without any, all
        old += [entry.filename for entry, own in versions if sum(one > own for one in counting) >= keep]
    return sorted(old)


@dataclass(frozen=True)
class IndexCheck:
    """The result of a check of an index."""

    #: Number of published wheels.
    wheels: int
    #: Number of projects.
    projects: int
    #: Projects whose interrupted change was finished now.
    finished: tuple[str, ...]
    #: A sentence for each damaged or missing file, and for each damaged record.
    faults: tuple[str, ...]


def check_index(repository: Repository) -> IndexCheck:
    """Finish interrupted changes, then read every file. Changes nothing else."""
    finished = tuple(repository.finish_interrupted())
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
    return IndexCheck(wheels, len(projects), finished, tuple(faults))


def abandoned_files(repository: Repository) -> list[str]:
    """The files that no record names and that are older than a day, so that no upload is writing them any more."""
    # Before the records: a wheel that is published meanwhile has a record then.
    starts = [f"files/{start}" for start in repository.objects.folders("files")]
    found = [f"{start}/{rest}" for start in starts for rest in repository.objects.folders(start)]
    entries = (entry for project in repository.projects() for entry in repository.entries(project))
    used = {entry.path.rpartition("/")[0] for entry in entries}
    abandoned = []
    for folder in (folder for folder in found if folder not in used):
        for path in (f"{folder}/{name}" for name in repository.objects.names(folder)):
            with suppress(FileNotFoundError):  # somebody else deleted it meanwhile
                if repository.objects.age(path) > _ABANDONED:
                    abandoned.append(path)
    return abandoned


def _file_faults(objects: Objects, entry: Entry) -> Iterator[str]:
    """What is wrong with the wheel and with its METADATA."""
    found = ""
    with suppress(FileNotFoundError), objects.local(entry.path) as wheel:
        found = sha256_of(wheel)
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
