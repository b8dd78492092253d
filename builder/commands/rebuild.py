"""`buildfarm rebuild`: build a wheel again from the record inside it, and compare both wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version

from builder.cli.options import (
    ImageOption,
    JobsOption,
    JsonOption,
    NoPullOption,
    NoPythonDownloadsOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    WheelMatrixOption,
)
from builder.cli.output import print_data
from builder.commands.building.executor_choice import RunSettings, choose_executor, override_base_image
from builder.commands.building.preflight import preflight
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, Code, Exit, MissingToolError, UsageError
from builder.gate.amounts import counted
from builder.hashing import sha256_of
from builder.log import print_line, print_warning, set_verbosity
from builder.matrix.config import MATRIX, GitSource, Matrix, Recipe, SdistSource
from builder.matrix.load import load_matrix, load_recipes, recipe_of
from builder.matrix.yaml_document import Document
from builder.progress.display import Progress
from builder.records import Part, Record, Toolchain, read_record, recorded_settings
from builder.result import RebuildResult
from builder.store import Store, write_atomic
from builder.wheelfile.archive import differences
from builder.wheels.build_dir import clear_abandoned
from builder.wheels.job import CompileJob, Executor, NotPreparedError
from builder.wheels.make import compile_wheel, repair_wheel
from builder.wheels.sources.prepare import prepare_source, project_folder, source_digest
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.uv import uv_command

#: Parts that are buildfarm's own code. A difference does not stop a rebuild: other code may make the same wheel.
_OWN_PARTS = frozenset({Part.SCRIPTS})

#: Whoever made the wheel chose these packages: no URL, no path, no range, no marker and no option.
_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9.!+_-]+)")

#: How to restore a part of the toolchain that differs. The other parts are Python packages: install that version.
_RESTORE = {
    Part.BASE: "set the base image with `images:` in matrix.yaml or with `--image`",
    Part.BASE_DIGEST: "restore the original buildfarm.lock, which has the recorded digest of the base image",
    Part.BASE_ID: "use the same base image: pull it by the digest in the original buildfarm.lock, or load a saved copy",
    Part.CXX: "set CC and CXX to the compiler that built the wheel",
    Part.CC: "set CC and CXX to the compiler that built the wheel",
    Part.IMAGE: "the rendered Dockerfile or a base image has changed; use the buildfarm version that built the wheel",
    Part.NVCC: "set CUDA_HOME to the toolkit that built the wheel",
    Part.PACKAGES: "use a package index that has the recorded versions",
    Part.SCCACHE: "put the recorded version of sccache on PATH, and do not set BUILDFARM_COMPILER_CACHE=0",
    Part.REQUESTED_CUDA: "set CUDA_HOME to the toolkit that built the wheel",
    Part.ZLIB: "run buildfarm under a Python with the recorded version of zlib",
}


def check_pins(packages: Sequence[str], where: str) -> None:
    """Raise UsageError for a recorded package that is not exactly `name==version`; `where` names the wheel."""
    for package in packages:
        match = _PIN.fullmatch(package)
        with suppress(InvalidVersion):
            if match and Version(match[2]):
                continue
        sentence = f"the record of the wheel names a package that is not an exact version: {package[:100]!r}"
        hint = "`rebuild` installs only packages of the form `name==version` from the package index"
        raise UsageError(sentence, Code.RECORD_NOT_USABLE, where=where, hints=[hint])


def recorded_recipe(record: Record, wheel: Path) -> Recipe:
    """The recipe that the record of a wheel gives; warns that the wheel decides which source is built.

    Raises UsageError if a part of the source was beside the recipe, or if the record says what no recipe may say.
    """
    missing = [patch.name for patch in record.source.patches]
    if record.source.origin is None:
        missing = ["the source, which was in the folder of the recipe"]
    if record.source.origin is None or missing:
        raise UsageError(
            f"the wheel does not contain all that it was built from; missing: {', '.join(missing)}",
            Code.RECORD_NOT_USABLE,
            where=str(wheel),
            hints=["run the command in the folder of the recipe's matrix.yaml, or pass `--matrix FILE`"],
        )
    match record.source.origin:
        case SdistSource(project=project, version=version, sha256=sha256):
            source = f"{project} {version} of the package index"
            keys = {"sdist": project, "version": version, "sha256": sha256}
        case GitSource(url=url, revision=revision, subdirectory=subdirectory):
            source = f"{url} at {revision}"
            keys = {"git": url, "revision": revision, **({"subdirectory": subdirectory} if subdirectory else {})}
    build = record.build
    data = {"name": build.extension, "version": build.version, "abi": str(build.abi), "imports": ["torch"]}
    # Whoever made the wheel wrote the record, so it is checked as a recipe is. A rebuild imports nothing.
    recipe = recipe_of(Document(wheel, {**data, "source": keys, **record.settings}, {}), wheel.parent)
    print_warning(f"there is no {MATRIX}, so the wheel decides what is built: the build scripts of {source} run here")
    return recipe


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
    """Raises MissingToolError that names every part that differs and is not buildfarm's own code."""
    old, new = recorded.parts(), here.parts()
    if recorded.python != here.python:
        old[Part.PYTHON_VERSION], new[Part.PYTHON_VERSION] = str(recorded.python), str(here.python)
    # An image that was pinned only then, or only now, is the same if its id is.
    ignored = _OWN_PARTS if Part.BASE_DIGEST in old.keys() & new.keys() else _OWN_PARTS | {Part.BASE_DIGEST}
    differing = [part for part in Part if old.get(part) != new.get(part) and part not in ignored]
    if differing:
        details = "; ".join(_difference(old, new, part) for part in sorted(differing))
        hints: dict[str, None] = {}
        for part in sorted(differing):
            version = old.get(part)
            hint = f"`pip install '{part}=={version}'` into buildfarm's environment"
            if version is None:
                hint = f"the wheel was built without {part}"
            elif version and part is Part.PYTHON_VERSION:
                hint = f"install the recorded patch release of Python with `{uv_command()} python install {version}`"
            hints[_RESTORE.get(part, hint)] = None
        raise MissingToolError(
            f"the toolchain differs from the one that built the wheel: {details}",
            Code.RECORD_DIFFERS,
            hints=list(hints),
        )


def with_recorded_parts(here: Toolchain, recorded: Toolchain) -> Toolchain:
    """The checked toolchain with the recorded values of the parts that `check_toolchain` ignores.

    The new wheel carries a record too. With this machine's values in it, an unchanged wheel would never be equal.
    """
    ignored = {part: recorded.parts().get(part) for part in (*_OWN_PARTS, Part.BASE_DIGEST)}
    return here.having(ignored)


def _difference(old: Mapping[Part, str], new: Mapping[Part, str], part: Part) -> str:
    """`c++: g++ 12.2.0 when the wheel was built, g++ 13.2.0 here`; of packages only those that differ."""
    if part is Part.PACKAGES:
        then, here = set(old.get(part, "").split()), set(new.get(part, "").split())
        sides = [("here", here - then), ("in the record", then - here)]
        return "; ".join(f"packages only {where}: {' '.join(sorted(names))}" for where, names in sides if names)
    return f"{part}: {old.get(part, 'none')} when the wheel was built, {new.get(part, 'none')} here"


@dataclass(frozen=True)
class RebuildOptions:
    """The options of `buildfarm rebuild`."""

    wheel: Annotated[Path, typer.Argument(metavar="WHEEL", help="A wheel that buildfarm built.")]
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare both wheels bit by bit. If they differ, exit with 1.")
    ] = False
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the rebuilt wheel.")] = None
    matrix: WheelMatrixOption = None
    image: ImageOption = None
    no_pull: NoPullOption = False
    jobs: JobsOption = None
    no_python_downloads: NoPythonDownloadsOption = False
    store: StoreOption = None
    quiet: QuietOption = False
    verbose: VerboseOption = False
    as_json: JsonOption = False


def rebuild(options: RebuildOptions) -> None:
    """Build a wheel again from its recipe, with the packages that the record inside the wheel names.

    Stops with an error if the recipe, the source or the toolchain differs from the record.

    Without matrix.yaml, the recipe is made from the record. Then the wheel decides whose build scripts run here.

    Examples:
        buildfarm rebuild dist/NAME.whl --verify
        buildfarm rebuild dist/NAME.whl --out rebuilt
    """
    set_verbosity(quiet=options.quiet, verbose=options.verbose)
    if not (options.verify or options.out):
        raise UsageError("nothing to do: pass --verify or --out DIR", Code.COMMAND_LINE_INVALID, where="rebuild")
    result = run_rebuild(options)
    if options.verify or options.as_json:
        print_data(rebuild_json(result) if options.as_json else rebuild_text(result))
    if options.verify:
        raise typer.Exit(int(Exit.OK if result.equal else Exit.FAILED))


def run_rebuild(options: RebuildOptions) -> RebuildResult:
    """Build a wheel again and compare; neither the wheel nor the finished builds of the store are changed.

    Raises:
        UsageError: the wheel has no record, the matrix has no recipe for it, or there is no matrix and the record
            does not name the source.
        MissingToolError: the source, the packages or a part of the toolchain differs here or is unavailable.
        BuildError: the build fails here.

    """
    record = read_record(options.wheel)
    check_pins(record.toolchain.packages, str(options.wheel))
    if options.out and options.out.resolve() == options.wheel.resolve().parent:
        raise UsageError(
            "the new wheel would overwrite the original wheel",
            Code.ALREADY_EXISTS,
            where="--out",
            hints=["name a different folder"],
        )
    if options.matrix or MATRIX.exists():
        matrix = load_matrix(options.matrix or MATRIX)
        named = [recipe for recipe in load_recipes(matrix) if recipe.name == record.build.extension]
        if not named:
            raise UsageError(
                f"the wheel was built from the extension {record.build.extension!r}, which this matrix does not list",
                Code.EXTENSION_UNKNOWN,
                where=str(matrix.path),
                hints=["name the matrix.yaml that lists the extension with `--matrix FILE`"],
            )
        recipe = named[0]
    else:
        recipe = recorded_recipe(record, options.wheel)
        cell = record.build.serves[0]
        matrix = Matrix(MATRIX, (cell.torch,), (cell.cuda,), (cell.python,), platforms=(cell.platform,))
    matrix = override_base_image(matrix, options.image)
    store = open_store(options.store)
    clear_abandoned(store)
    # `cuda` changes no compile, and the records of older versions do not have it.
    recipe = replace(recipe, cuda=record.settings.get("cuda", "required"))
    check_source(record, recipe)
    environments = Environments(store, matrix.torch_index, python_downloads=not options.no_python_downloads)
    # The recorded executor with the recorded packages; on this machine with sccache only if it was used.
    toolchain = record.toolchain
    cached = toolchain.executor != "local" or Part.SCCACHE in toolchain.parts()
    pull = not options.no_pull
    settings = RunSettings(matrix, toolchain.executor, record.minor_mismatch, compiler_cache=cached, pull=pull)
    executor = choose_executor(settings, [record.build], environments, packages=toolchain.packages)
    with suppress(NotPreparedError):  # before the index is asked for a recorded package
        known = executor.prepare(record.build, recipe, log=store.log(f"rebuild-{record.build}"), cached_only=True)
        check_toolchain(toolchain, known.toolchain)
    jobs = preflight([record.build], {recipe.name: recipe}, executor, store, options.jobs).jobs
    sha256 = sha256_of(options.wheel)
    with store.work(f"rebuild-{sha256[:16]}") as work:
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
    log, progress = store.log(name), Progress()
    stage = partial(progress.stage, name)
    log.write_bytes(b"")
    with progress.shown():
        progress.start(name, log)
        try:
            prepared = executor.prepare(record.build, recipe, log=log)
            check_toolchain(record.toolchain, prepared.toolchain)
            job = CompileJob(
                record.build,
                recipe,
                with_recorded_parts(prepared.toolchain, record.toolchain),
                project_folder(recipe, work / "src"),
                work,
                log,
                jobs,
                work.name,
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


def rebuild_json(result: RebuildResult) -> str:
    """The result of a rebuild, as JSON."""
    data = asdict(result)
    differences = data.pop("differences")
    return json.dumps({**data, "equal": result.equal, "differences": differences}, indent=1) + "\n"
