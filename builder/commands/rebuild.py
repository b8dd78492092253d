"""`buildfarm rebuild`: build a wheel again from the record inside it, and compare both wheels."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packaging.version import VERSION_PATTERN

from builder.commands.building.preflight import RunSettings, choose_executor, preflight
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, Code, Exit, MissingToolError, UsageError
from builder.formats import sha256_of
from builder.gate.amounts import counted
from builder.log import print_data, print_line
from builder.matrix.config import MATRIX, Recipe
from builder.matrix.load import load_matrix, load_recipes
from builder.option import argument, flag, option
from builder.progress.display import Progress
from builder.records import Part, Record, Toolchain, read_record, recorded_settings
from builder.store import Store, write_atomic
from builder.wheelfile.archive import differences
from builder.wheels.job import CompileJob, Executor, NotPreparedError
from builder.wheels.make import compile_wheel, repair_wheel
from builder.wheels.sources.prepare import prepare_source, source_digest
from builder.wheels.toolchain.environments import Environments

#: Parts whose difference does not stop a rebuild: a base image that was pinned only then, or only now, is the same if
#: its id is. The new wheel's record has the recorded values: with those of this machine, an unchanged wheel would never
#: be equal.
_IGNORED = frozenset({Part.BASE_DIGEST})

#: Whoever made the wheel chose these packages: no URL, no path, no range, no marker and no option.
_PIN = re.compile(rf"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?=={VERSION_PATTERN}", re.VERBOSE | re.IGNORECASE)

_RESTORE = (
    "use what built the wheel: CC and CXX name the compiler, CUDA_HOME the toolkit, `images:` and buildfarm.lock the"
    " base image; `pip install NAME==VERSION` changes the tools of buildfarm, `uv python install VERSION` the Python"
)


def check_pins(packages: Sequence[str], where: str) -> None:
    """Raise UsageError for a recorded package that is not exactly `name==version`; `where` names the wheel."""
    for package in packages:
        if not _PIN.fullmatch(package):
            sentence = f"the record of the wheel names a package that is not an exact version: {package[:100]!r}"
            hint = "`rebuild` installs only packages of the form `name==version` from the package index"
            raise UsageError(sentence, Code.RECORD_NOT_USABLE, where=where, hints=[hint])


def check_source(record: Record, recipe: Recipe) -> None:
    """Raises MissingToolError when the source here, or a setting of the recipe, differs from the record."""
    old, new = record.settings, recorded_settings(recipe)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    differing = [f"`{key}`" for key in changed]
    hints = [
        f"the wheel's record has {key}: {json.dumps(old[key])}" if key in old else f"the wheel's record has no {key}"
        for key in changed
    ]
    if recipe.wheel_version(record.build.torch, record.build.cuda) != record.build.version:
        differing.insert(0, "`version`")
    source = record.source
    if source_digest(recipe) != source.digest:
        differing.insert(0, "source")
        hints.append(f"the wheel's record has the source: {json.dumps(source.to_json())}")
    if differing:
        raise MissingToolError(
            f"the source or the recipe differs from the wheel's record: {', '.join(differing)}",
            Code.RECORD_DIFFERS,
            where=str(recipe.folder),
            hints=[
                "restore the recorded recipe and source, or pass the matrix.yaml that lists them with `--matrix`",
                *hints,
            ],
        )


def check_toolchain(recorded: Toolchain, here: Toolchain) -> None:
    """Raises MissingToolError that names every part that differs and is not in `_IGNORED`."""
    old, new = recorded.parts(), here.parts()
    if recorded.python != here.python:
        old[Part.PYTHON_VERSION], new[Part.PYTHON_VERSION] = str(recorded.python), str(here.python)
    differing = [part for part in sorted(Part) if old.get(part) != new.get(part) and part not in _IGNORED]
    if not differing:
        return
    details = []
    for part in differing:
        then, now = old.get(part, "none"), new.get(part, "none")
        if part is Part.PACKAGES:  # only those that differ
            then, now = (" ".join(sorted({*a.split()} - {*b.split()})) for a, b in ((then, now), (now, then)))
        details.append(f"{part}: {then} when the wheel was built, {now} here")
    sentence = f"the toolchain differs from the one that built the wheel: {'; '.join(details)}"
    raise MissingToolError(sentence, Code.RECORD_DIFFERS, hints=[_RESTORE])


@dataclass(frozen=True)
class RebuildOptions:
    """The options of `buildfarm rebuild`."""

    wheel: Path = argument("A wheel that buildfarm built.", "WHEEL")
    verify: bool = flag("Compare both wheels bit by bit. If they differ, exit with 1.")
    out: Path | None = option("Folder that keeps the rebuilt wheel.", "DIR")
    matrix: Path = MATRIX
    jobs: int | None = None
    store: Path | None = None
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class RebuildResult:
    """The result of building a wheel again."""

    wheel: str
    #: sha256, rebuilt_sha256: of the first and of the rebuilt wheel, hex.
    sha256: str
    rebuilt_sha256: str
    #: How the rebuilt wheel differs; empty when both are equal bit for bit.
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both wheels are equal bit for bit."""
        return self.sha256 == self.rebuilt_sha256 and not self.differences


def rebuild(options: RebuildOptions) -> Exit:
    """Build a wheel again from its recipe, with the packages that the record inside the wheel names.

    Stops with an error if the recipe, the source or the toolchain differs from the record.

    Examples:
        buildfarm rebuild dist/NAME.whl --verify
        buildfarm rebuild dist/NAME.whl --verify --out rebuilt
    """
    if not options.verify:
        raise UsageError("nothing to do: pass --verify", Code.COMMAND_LINE_INVALID, where="rebuild")
    result = run_rebuild(options)
    print_data(rebuild_text(result))
    return Exit.OK if result.equal else Exit.FAILED


def run_rebuild(options: RebuildOptions) -> RebuildResult:
    """Build a wheel again and compare; neither the wheel nor the finished builds of the store are changed.

    Raises:
        UsageError: the wheel has no record, or the matrix has no recipe for it.
        MissingToolError: the source, the packages or a part of the toolchain differs here or is unavailable.
        BuildError: the build fails here.

    """
    record = read_record(options.wheel)
    check_pins(record.toolchain.packages, str(options.wheel))
    if options.out and options.out.resolve() == options.wheel.resolve().parent:
        sentence = "the new wheel would overwrite the original wheel"
        hint = "name a different folder"
        raise UsageError(sentence, Code.ALREADY_EXISTS, where="--out", hints=[hint])
    matrix = load_matrix(options.matrix)
    recipe = next((recipe for recipe in load_recipes(matrix) if recipe.name == record.build.extension), None)
    if recipe is None:
        sentence = f"the wheel was built from the extension {record.build.extension!r}, which this matrix does not list"
        hint = "name the matrix.yaml that lists the extension with `--matrix FILE`"
        raise UsageError(sentence, Code.EXTENSION_UNKNOWN, where=str(matrix.path), hints=[hint])
    store = open_store(options.store)
    # `cuda` changes no compile, and the records of older versions do not have it.
    recipe = replace(recipe, cuda=record.settings.get("cuda", "required"))
    recipe = recipe.of(record.build.torch, record.build.cuda)
    check_source(record, recipe)
    environments = Environments(store, matrix.torch_index)
    # The recorded executor with the recorded packages; on this machine with sccache only if it was used.
    toolchain = record.toolchain
    cached = toolchain.executor != "local" or Part.SCCACHE in toolchain.parts()
    settings = RunSettings(matrix, toolchain.executor, record.minor_mismatch, compiler_cache=cached)
    executor = choose_executor(settings, [record.build], environments, packages=toolchain.packages)
    log = store.log(f"rebuild-{record.build}", recipe.folder)
    with suppress(NotPreparedError):  # before the index is asked for a recorded package
        known = executor.prepare(record.build, recipe, log=log, cached_only=True)
        check_toolchain(toolchain, known.toolchain)
    _, jobs = preflight([record.build], {recipe.name: recipe}, executor, store, options.jobs)
    sha256 = sha256_of(options.wheel)
    with store.work(f"rebuild-{sha256[:16]}", lambda who: print_line(f"waiting for {who}, which rebuilds it")) as work:
        wheel = _build_again(record, recipe, executor, store, work, jobs)
        found = differences(options.wheel, wheel)
        if options.out:
            target = options.out.absolute() / wheel.name
            write_atomic(target, wheel.read_bytes())
            print_line(f"wrote {target}")
        return RebuildResult(options.wheel.name, sha256, sha256_of(wheel), tuple(found))


def _build_again(record: Record, recipe: Recipe, executor: Executor, store: Store, work: Path, jobs: int) -> Path:
    """The rebuilt wheel, in `work`; raises MissingToolError when the toolchain is not the recorded one."""
    name = f"rebuild-{record.build}"
    log, progress = store.log(name, recipe.folder), Progress()
    stage = partial(progress.stage, name)
    log.write_bytes(b"")
    with progress.shown():
        progress.start(name, log)
        try:
            prepared = executor.prepare(record.build, recipe, log=log)
            check_toolchain(record.toolchain, prepared.toolchain)
            recorded = record.toolchain
            toolchain = prepared.toolchain.having({part: recorded.parts().get(part) for part in _IGNORED})
            job = CompileJob(
                record.build,
                recipe,
                toolchain,
                work,
                log,
                jobs,
                store.owner(work.name),
                reuse=False,  # with objects of the first build the comparison would prove nothing
            )
            stage("fetch")
            job.tree.mkdir()
            source = prepare_source(recipe, job.tree, cache=store.root / "sources")
            raw = compile_wheel(prepared, job, stage)
            wheel, _ = repair_wheel(raw, source.digest, stage, minor_mismatch=record.minor_mismatch)
        except BuildfarmError as error:
            progress.finish(name, f"failed: {error}")
            raise
        progress.finish(name, "built")
    return wheel


def rebuild_text(result: RebuildResult) -> str:
    """`equal, sha256 …`, or each difference on its own line."""
    if result.equal:
        return f"equal, sha256 {result.sha256}\n"
    count = len(result.differences)
    lines = [
        f"not equal: {counted(count, 'difference')}",
        f"  {result.sha256}  {result.wheel}",
        f"  {result.rebuilt_sha256}  rebuilt",
        *(f"  {difference}" for difference in result.differences),
        "diffoscope shows the content that differs; `--out DIR` keeps the new wheel for it",
    ]
    return "\n".join(lines) + "\n"
