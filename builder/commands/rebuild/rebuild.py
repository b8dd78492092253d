"""`buildfarm rebuild`: build a wheel again from the record inside it, and compare both wheels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

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
    examples,
)
from builder.cli.output import print_data
from builder.commands.building.executor_choice import choose_executor, override_base_image
from builder.commands.building.preflight import preflight
from builder.commands.folders import open_store
from builder.commands.rebuild.rebuild_checks import (
    check_source,
    check_toolchain,
    find_recipe,
    recorded_recipe,
    with_recorded_parts,
)
from builder.errors import BuildfarmError, Code, Exit, UsageError
from builder.formats import BUILD_FORMAT
from builder.hashing import sha256_of
from builder.log import print_line, set_verbosity
from builder.matrix.config import MATRIX, Matrix, Recipe
from builder.matrix.load import load_matrix
from builder.progress.display import Progress
from builder.publish.provenance import recorded_format
from builder.records.record import Record, read_record
from builder.result import RebuildResult
from builder.store import Store, write_atomic
from builder.wheelfile.diff import differences
from builder.wheels.build_dir import clear_abandoned
from builder.wheels.job import CompileJob, Executor
from builder.wheels.make import make_wheel
from builder.wheels.sources.prepare import prepare_source, project_folder
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.recorded_packages import check_pins

EXAMPLES = examples("buildfarm rebuild dist/NAME.whl --verify", "buildfarm rebuild dist/NAME.whl --out rebuilt")


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
    """
    set_verbosity(quiet=options.quiet, verbose=options.verbose)
    if not (options.verify or options.out):
        raise UsageError("nothing to do: pass --verify or --out DIR", Code.OPTION_MISSING, where="rebuild")
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
            Code.FILE_EXISTS,
            where="--out",
            hints=["name a different folder"],
        )
    if options.matrix or MATRIX.exists():
        matrix = load_matrix(options.matrix or MATRIX)
        recipe = find_recipe(record, matrix)
    else:
        recipe = recorded_recipe(record, options.wheel)
        cell = record.build.serves[0]
        matrix = Matrix(MATRIX, (cell.torch,), (cell.cuda,), (cell.python,), platforms=(cell.platform,))
    matrix = override_base_image(matrix, options.image)
    store = open_store(options.store)
    store.clear_abandoned()
    clear_abandoned()
    check_source(record, recipe, store.root / "sources")
    _report_format(options.wheel)
    environments = Environments(store, matrix.torch_index, python_downloads=not options.no_python_downloads)
    executor = _recorded_executor(record, matrix, environments, pull=not options.no_pull)
    if known := executor.known_toolchain(record.build, recipe):  # before the index is asked for a recorded package
        check_toolchain(record.toolchain, known)
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


def _report_format(wheel: Path) -> None:
    """Print whether a buildfarm with another build format built the wheel: this one may still make an equal wheel."""
    recorded = recorded_format(wheel)
    if recorded is None:
        print_line(
            "cannot tell which version of buildfarm built the wheel: there is no provenance file next to the wheel"
        )
    elif recorded != BUILD_FORMAT:
        print_line("a different version of buildfarm built the wheel; the rebuilt wheel may still be equal")


def _recorded_executor(record: Record, matrix: Matrix, environments: Environments, *, pull: bool) -> Executor:
    """The recorded executor, with the recorded packages, and on this machine with sccache only if it was used."""
    toolchain = record.toolchain
    return choose_executor(
        toolchain.executor,
        matrix,
        [record.build],
        environments,
        minor_mismatch=record.minor_mismatch,
        packages=toolchain.packages,
        compiler_cache=toolchain.executor != "local" or toolchain.sccache is not None,
        pull=pull,
    )


def _build_again(record: Record, recipe: Recipe, executor: Executor, store: Store, work: Path, jobs: int) -> Path:
    """The rebuilt wheel, in `work`; raises MissingToolError when the toolchain is not the recorded one."""
    name = f"rebuild-{record.build}"
    log, progress = store.log(name), Progress()
    log.write_bytes(b"")
    with progress.shown():
        progress.start(name, log)
        try:
            here = executor.toolchain(record.build, recipe, log=log)
            check_toolchain(record.toolchain, here)
            job = CompileJob(
                record.build,
                recipe,
                with_recorded_parts(here, record.toolchain),
                project_folder(recipe, work / "src"),
                work,
                log,
                jobs,
                work.name,
                store.owner(work.name),
                reuse=False,  # with objects of the first build the comparison would prove nothing
            )
            progress.stage(name, "fetch")
            job.tree.mkdir()
            source = prepare_source(recipe, job.tree, cache=store.root / "sources").digest
            wheel, _ = make_wheel(
                job, source, executor, lambda text: progress.stage(name, text), minor_mismatch=record.minor_mismatch
            )
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
        f"not equal: {count} difference{'s' * (count != 1)}",
        f"  {result.sha256}  {result.wheel}",
        f"  {result.rebuilt_sha256}  rebuilt",
        *(f"  {difference}" for difference in result.differences),
        "diffoscope shows the content that differs; `--out DIR` keeps the new wheel for it",
    ]
    return "\n".join(lines) + "\n"


def rebuild_json(result: RebuildResult) -> str:
    """The result of a rebuild, as JSON."""
    data = {
        "wheel": result.wheel,
        "sha256": result.sha256,
        "rebuilt_sha256": result.rebuilt_sha256,
        "equal": result.equal,
        "differences": [{"member": each.member, "what": each.what} for each in result.differences],
    }
    return json.dumps(data, indent=1) + "\n"
