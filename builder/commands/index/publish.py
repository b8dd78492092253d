"""`buildfarm publish`: put wheels whose proofs reach a level into an index."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from textwrap import wrap
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from builder.commands.building.folder_builds import last_wheels
from builder.commands.folders import DIST, new_output, open_store, read_dist
from builder.commands.index.verification import Verification
from builder.errors import BuildfarmError, Code, Exit, NothingSelectedError, UsageError
from builder.formats import sha256_of
from builder.gate.amounts import counted
from builder.log import print_line, print_result, print_warning, verbosity
from builder.matrix.axes import Cell
from builder.matrix.config import MATRIX, Recipe
from builder.matrix.load import load_matrix, load_recipes
from builder.option import argument, option
from builder.proof import Check, Proof
from builder.publish.index.install import commands_from_index, install_lines
from builder.publish.index.levels import Level, levels_of, sentence, shortfalls
from builder.publish.index.new_wheel import check_statement, merged, new_wheel, proofs_beside
from builder.publish.index.objects import Folder, open_objects, url_of
from builder.publish.index.pages import ALL, paths_of, project_of
from builder.publish.index.reader import IndexReader
from builder.publish.index.repository import ConflictError, Kept, NewWheel, Repository
from builder.publish.proof_lines import causes, uncompiled_text
from builder.publish.server.client import IndexServer
from builder.publish.terminal import output_width
from builder.store import Store, StoredBuild
from builder.wheelfile.compatibility import check_wheel_name
from builder.wheels.sources.prepare import source_digest

_OLDER = (
    "These are the results of the last `buildfarm build` or `smoke`. After a change of cases.py, run the same"
    " `buildfarm build` command again: it tests the wheel again and does not compile."
)
_UNTESTED = "To test a wheel that somebody else built, and publish it, run `buildfarm adopt WHEEL --to INDEX`."
_KEPT = "The index keeps a published wheel that does not reach the level; `buildfarm yank` withdraws it."
#: What a level leaves open.
_NOTES = {Level.STATIC: " (not every result was checked)", Level.CPU: " (not all ops were run on a GPU)"}
_NO_GPU = (
    "Ops without a CPU kernel need a GPU. Add CPU kernels, or run `buildfarm smoke` on a GPU machine and publish with"
    " `--require gpu`, or publish without results of these ops with `--require static`."
)


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """The options of `buildfarm publish`."""

    to: str = option(
        "The index: its folder, which is made if it is missing; s3://BUCKET/PREFIX; or the URL of a running"
        " `buildfarm serve`.",
        "DIR|URL",
        default=...,
    )
    wheels: list[Path] | None = argument(
        "Wheel files. Default: every wheel in the --dist folder.", "WHEEL", default=None
    )
    require: str = "cpu"
    dist: Path = DIST
    matrix: Path | None = option(
        "The matrix whose recipes may accept findings. Default: matrix.yaml, if there is one.", "FILE"
    )
    store: Path | None = None
    verbose: bool = False
    as_json: bool = False


class PublishOutcome(StrEnum):
    """What `publish` did with a wheel."""

    PUBLISHED = "published"
    UNCHANGED = "already published"
    REFUSED = "refused"


@dataclass(frozen=True)
class PublishResult:
    """What `publish` did with one wheel."""

    wheel: str
    outcome: PublishOutcome
    #: The level of each cell, by the cell's name.
    cells: dict[str, str]
    #: The paths of the index that list the wheel.
    paths: tuple[str, ...] = ()
    #: reasons, notes: why it was refused, and what else to say about it; a sentence each.
    reasons: tuple[str, ...] = ()
    #: Why it was yanked before, maybe empty; None if it is not yanked.
    yanked: str | None = None
    notes: tuple[str, ...] = ()
    #: What else `--json` says about it.
    about: dict[str, Any] = field(default_factory=dict)
    #: What its proofs lack for a required level; `reasons` then are the sentences of these.
    lacking: Sequence[Proof] = ()
    #: Why the check `window`, of the torch releases that METADATA allows, did not run; empty if it did.
    unverified: str = ""


def publish(options: PublishOptions) -> Exit:
    """Put wheels into a package index, each with its proofs, its SBOM and its provenance.

    A wheel is refused if a check failed, or if its proofs do not reach the levels of --require in each of its cells.

    Level none: no check failed.

    Level static: every check of the wheel file passed, and the cell defines every symbol that the wheel's libraries
    need.

    Level cpu: as static, and the wheel was imported in the cell, every op has a case, and every result is right.

    Level gpu: as cpu, but with results on a GPU. A wheel can reach gpu without cpu, if an op has no CPU kernel.

    The checks of `buildfarm verify` run too. A failed one refuses the wheel, unless the recipe in --matrix accepts it.
    For a wheel that does not use torch they are record, tags, metadata, modules and contents.
    One that did not run, because the store has no symbol inventory, does not refuse it.

    A published wheel that does not reach the levels stays in the index, and the exit code is 1.

    A published file never changes: a different wheel of the same file name is refused too.

    A wheel that --dist also has in a newer version is left out; name it to publish it.

    A server gets the token in the environment variable BUILDFARM_TOKEN, or in the netrc file. It must have the scope
    prove: see `buildfarm token add --help`.

    Examples:
        buildfarm publish --to index
        buildfarm publish dist/NAME.whl --to /srv/wheels --require cpu,gpu
        buildfarm publish --to s3://wheels/team
        BUILDFARM_TOKEN=... buildfarm publish --to https://wheels.example/
    """
    required = levels_of(options.require)
    matrix = options.matrix or (MATRIX if MATRIX.is_file() else None)
    recipes = load_recipes(load_matrix(matrix)) if matrix else []
    store = open_store(options.store, run=False)
    built = {stored.wheel.name: (stored, recipe) for recipe in recipes for stored in last_wheels(store, recipe)}
    wheels = list(options.wheels or _latest(read_dist(options.dist), built))
    for name in dict.fromkeys(wheel.name for wheel in wheels if wheel.name in built):
        if _is_older_than_source(*built[name]):
            print_warning(f"{name}: its source has changed since it was built; `buildfarm build` makes a new wheel")
    target: Repository | IndexServer
    if options.to.startswith(("http://", "https://")):
        target = IndexServer(options.to)
        index = target.url
    else:
        target, index = Repository(open_objects(options.to)), url_of(options.to)
    results = publish_wheels(target, wheels, store, required, recipes)
    return print_published(results, index, required, as_json=options.as_json)


def _latest(wheels: Sequence[Path], built: Collection[str]) -> Iterator[Path]:
    """For the same torch, CUDA and Python only the wheel of the last build, or else that of the newest version.

    `built` are the names of the last wheels of the recipes.
    """
    latest: dict[tuple[object, ...], tuple[bool, Version, Path]] = {}
    for wheel in wheels:
        check_wheel_name(wheel.name, str(wheel))
        name, version, _, tags = parse_wheel_filename(wheel.name)
        key = (name, version.local, frozenset((tag.interpreter, tag.abi) for tag in tags))
        found = (wheel.name in built, version, wheel)
        latest[key] = max(latest.get(key, found), found)
    chosen = {wheel for *_, wheel in latest.values()}
    for wheel in wheels:
        if wheel in chosen:
            yield wheel
        else:
            print_line(f"left out {wheel.name}: {wheel.parent} has a newer wheel in place of it")


def _is_older_than_source(stored: StoredBuild, recipe: Recipe) -> bool:
    record = stored.record.record
    try:
        digest = source_digest(recipe.of(record.build.torch, record.build.cuda))
    except BuildfarmError:  # a file that `build` will name
        return False
    return digest != record.source.digest


def publish_wheels(
    target: Repository | IndexServer,
    wheels: Sequence[Path],
    store: Store,
    required: Sequence[Level],
    recipes: Sequence[Recipe] = (),
) -> list[PublishResult]:
    """Publish each wheel whose proofs reach every required level; refuse the others.

    A wheel that is published already stays published, also if its proofs no longer reach the level. The proofs are
    those of the store, those in the file beside the wheel, those that the index has of the same file, and those of the
    checks of `verify` that are not among them; `recipes` may accept their findings. Raises UsageError for a wheel that
    cannot be read, and for proofs or a statement of a different file; no wheel is published then.
    """
    if not wheels:
        hint = "run `buildfarm build` first, or name the wheels: `buildfarm publish WHEEL --to index`"
        raise NothingSelectedError("there is no wheel to publish", Code.NO_WHEEL, hints=[hint])
    verification = Verification(store, recipes)
    ready = []
    for wheel, sha256 in [(wheel, _sha256(wheel)) for wheel in wheels]:
        check_statement(wheel, sha256)
        kept = target.kept(wheel.name, sha256) if isinstance(target, Repository) else Kept()  # a server keeps its own
        proofs = merged(store.proofs(sha256), proofs_beside(wheel, sha256), kept.proofs)
        proofs = verification.added(wheel, proofs)
        ready.append((new_wheel(wheel, proofs, kept=kept), proofs))
    if isinstance(target, Repository) and isinstance(target.objects, Folder):
        if not target.objects.root.is_dir():
            print_line(f"made the index {target.objects.root}")
        new_output(target.objects.root, "--to")
    return [publish_wheel(target, new, proofs, required) for new, proofs in ready]


def publish_wheel(
    target: Repository | IndexServer, new: NewWheel, proofs: Sequence[Proof], required: Sequence[Level]
) -> PublishResult:
    """Publish a wheel if these proofs reach every required level; otherwise refuse it."""
    name, cells = new.wheel.name, new.entry.farm.cells if new.entry.farm else {}
    if lacking := [proof for level in required for proof in shortfalls(proofs, level)]:
        published = target.published(new.entry.project, name)
        same = published if published and published.sha256 == new.entry.sha256 else None
        return PublishResult(
            name,
            PublishOutcome.UNCHANGED if same else PublishOutcome.REFUSED,  # its page keeps its proofs
            cells,
            yanked=same.yanked if same else None,
            reasons=tuple(dict.fromkeys(map(sentence, lacking))),
            lacking=lacking,
        )
    try:
        added = target.add(new)
    except ConflictError as error:
        return PublishResult(name, PublishOutcome.REFUSED, cells, reasons=(error.sentence, *error.hints))
    published = None if added else target.published(new.entry.project, name)
    uncompiled = uncompiled_text(proofs)
    return PublishResult(
        name,
        PublishOutcome.PUBLISHED if added else PublishOutcome.UNCHANGED,
        cells,
        (ALL, *paths_of(new.entry)),
        yanked=published.yanked if published else None,
        notes=(uncompiled,) if uncompiled else (),
        unverified=next((one.reason for one in proofs if one.check is Check.WINDOW and not one.has_run), ""),
    )


def _sha256(wheel: Path) -> str:
    if wheel.is_dir():
        hint = f"`--dist {shlex.quote(str(wheel))}` publishes every wheel of the folder"
        raise UsageError("this is a folder, not a wheel", Code.NOT_A_WHEEL, where=str(wheel), hints=[hint])
    if not wheel.is_file():
        raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=str(wheel))
    return sha256_of(wheel)


def publish_text(results: Sequence[PublishResult], index: str, required: Sequence[Level] | None) -> str:
    """A line for each wheel, with the number of cells of each level; reasons; commands that install from the index.

    `index` is the URL of its root for pip and uv; empty for an index in a bucket, which they read through a web server.
    Without `required`, the text does not mention levels.
    """
    lines = list(_result_lines(sorted(results, key=lambda one: one.outcome is PublishOutcome.REFUSED)))
    for reason, count in Counter(filter(None, (result.unverified for result in results))).items():
        lines.append(f"window: not run for {counted(count, 'wheel')}: {reason}")
    low = [result for result in results if result.lacking]
    if required is not None and low:
        reasons = [reason for result in low for reason in result.reasons]
        wanted = " and ".join(map(str, required))
        untested = any("there is no proof" in reason or "no cell was tested" in reason for reason in reasons)
        lines += [
            "",
            f"Each cell must reach {wanted}; --require sets a lower level. `buildfarm publish --help` explains it.",
            _NO_GPU if any("no GPU" in reason for reason in reasons) else _OLDER,
            *([_UNTESTED] if untested else []),
            *([_KEPT] if any(result.outcome is PublishOutcome.UNCHANGED for result in low) else []),
        ]
    # After a refusal alone, what the index has already is not what the caller asked about.
    if any(one.reasons for one in results) and all(one.outcome is not PublishOutcome.PUBLISHED for one in results):
        return "\n".join(lines) + "\n"
    if not index:
        lines += ["", "pip and uv read a bucket through a web server: docs/how-to/object-stores.md"]
    elif commands := _install_commands(results, index):
        cells = [Cell.parse(cell) for result in _offered(results) for cell in result.cells]
        lines += ["", *(install_lines(cells, commands) if cells else ["To install:", *commands])]
    return "\n".join(lines) + "\n"


def _result_lines(results: Sequence[PublishResult]) -> Iterator[str]:
    """A line for each wheel, with the number of cells of each level, and the reasons of refused wheels."""
    width = output_width()
    for result in results:
        count = Counter(result.cells.values())
        reached = [(level, counted(count[level], "cell")) for level in reversed(Level) if count[level]]
        levels = [f"{cells}: {level}{_NOTES.get(level, '')}" for level, cells in reached]
        yield f"{result.outcome:<17}  {result.wheel}  {'; '.join(levels)}".rstrip()
        if result.yanked is not None:
            because = f" ({result.yanked})" if result.yanked else ""
            undo = f"buildfarm yank {result.wheel} --index INDEX --undo"
            yield f"  it is yanked{because}, and stays so; `{undo}` offers it again"
        yield from (f"  {note}" for note in result.notes)
        for reason in result.reasons if not result.lacking else ():
            yield from wrap(reason, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        found = replace(causes(result.lacking), cells={"": result.cells})
        yield from found.lines(width, every=verbosity.verbose)


def _install_commands(results: Sequence[PublishResult], root: str) -> list[str]:
    """The commands of pip and uv for the newest version of each project, as the index lists its wheels now.

    None for a project whose page cannot be read.
    """
    wheels = {result.wheel for result in _offered(results)}
    reader, commands = IndexReader(root), dict[str, None]()
    for project in dict.fromkeys(project_of(result.wheel) for result in _offered(results)):
        with suppress(BuildfarmError):  # the wheels are published, also if the server does not answer any more
            entries = reader.entries(project)
            ours = [(Version(entry.version.public), entry) for entry in entries if entry.filename in wheels]
            newest = max((version for version, _ in ours), default=None)
            for entry in (entry for version, entry in ours if version == newest):
                commands |= dict.fromkeys(commands_from_index(reader.url, entries, entry, entry.cells))
    return list(commands)


def _offered(results: Sequence[PublishResult]) -> list[PublishResult]:
    """The published wheels that are not yanked."""
    return [result for result in results if result.paths and result.yanked is None]


def print_published(
    results: Sequence[PublishResult], index: str, required: Sequence[Level] | None, *, as_json: bool
) -> Exit:
    """Print the text of `publish_text`, or everything about each wheel; return the exit code."""
    keys = ("wheel", "outcome", "cells", "paths", "yanked", "reasons")
    data = [{key: getattr(result, key) for key in keys} | result.about for result in results]
    print_result(publish_text(results, index, required), data, as_json=as_json)
    return Exit.FAILED if any(result.reasons for result in results) else Exit.OK
