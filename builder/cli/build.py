"""`buildfarm build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli.distributed.scheduler_options import (
    PlainTcpOption,
    ProveOnOption,
    SchedulerOption,
    WorkerTimeoutOption,
    remote_options,
)
from builder.cli.options import (
    ArchOption,
    BuildDryRunOption,
    BuildSourceArgument,
    CudaOption,
    DistOption,
    ExecutorName,
    ExecutorOption,
    ExtOption,
    ImageOption,
    JobsOption,
    JsonOption,
    JunitOption,
    MatrixOption,
    MinorMismatchOption,
    NoCompilerCacheOption,
    NoPullOption,
    NoPythonDownloadsOption,
    PythonOption,
    QuietOption,
    RecheckOption,
    StoreOption,
    SummaryOption,
    TorchOption,
    VerboseOption,
    architectures,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.commands.building.options import BuildOptions
from builder.commands.distributed.options import PATIENCE
from builder.errors import Exit
from builder.log import print_error, print_line, set_verbosity
from builder.matrix.config import MATRIX
from builder.publish.plan_text import dry_run_json, dry_run_text

if TYPE_CHECKING:
    from builder.commands.building.build import BuildOutcome
    from builder.recipes.added import Added

EXAMPLES = examples(
    "buildfarm build --torch 2.2 --cuda 12.1",
    "buildfarm build --torch 2.11 --cuda 13.0 --python 3.12",
    "buildfarm build torch-scatter==2.1.2 --torch 2.11 --cuda 13.0",
    "buildfarm build --ext ms_deform_attn --executor docker --jobs 8",
)


def build(
    source: BuildSourceArgument = None,
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    arch: ArchOption = None,
    matrix: MatrixOption = MATRIX,
    executor: ExecutorOption = ExecutorName.AUTO,
    image: ImageOption = None,
    no_pull: NoPullOption = False,
    jobs: JobsOption = None,
    minor_mismatch: MinorMismatchOption = False,
    no_compiler_cache: NoCompilerCacheOption = False,
    no_python_downloads: NoPythonDownloadsOption = False,
    recheck: RecheckOption = False,
    scheduler: SchedulerOption = None,
    prove_on: ProveOnOption = None,
    plain_tcp: PlainTcpOption = False,
    worker_timeout: WorkerTimeoutOption = PATIENCE,
    dry_run: BuildDryRunOption = False,
    dist: DistOption = Path("dist"),
    junit: JunitOption = None,
    summary: SummaryOption = None,
    store: StoreOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the selected wheels, test them in their cells, and write them to dist/ with an index for pip and uv."""
    set_verbosity(quiet=quiet, verbose=verbose)
    archs = architectures(arch)  # may raise; so before a recipe is written
    added = _added(source, write=not dry_run, torch=torch, cuda=cuda, python=python, matrix=matrix, store=store)
    ext = [*(ext or ()), *([added.recipe.name] if added else ())]
    options = BuildOptions(
        matrix=matrix,
        select=selection(torch, cuda, python, ext),
        archs=archs,
        executor=str(executor),
        image=image,
        pull=not no_pull,
        jobs=jobs,
        minor_mismatch=minor_mismatch,
        compiler_cache=not no_compiler_cache,
        python_downloads=not no_python_downloads,
        recheck=recheck,
        store=store,
        dist=dist.absolute(),
        summary=summary,
        remote=remote_options(scheduler, prove_on, plain_tcp=plain_tcp, worker_timeout=worker_timeout),
    )
    if dry_run:
        return _print_dry_run(options, added, as_json=as_json)
    from builder.commands.building.build import run_build  # noqa: PLC0415 - loads slowly

    return _finish(dist, run_build(options), junit, as_json=as_json)


def _print_dry_run(options: BuildOptions, added: Added | None, *, as_json: bool) -> None:
    """Print what a run would compile."""
    from builder.commands.building.build import dry_run, hint_of  # noqa: PLC0415

    builds = dry_run(options, added)
    print_data(dry_run_json(builds) if as_json else dry_run_text(builds, hint_of(options, builds)))


def _finish(dist: Path, outcome: BuildOutcome, junit: Path | None, *, as_json: bool) -> None:
    """Print the errors and the result; write the JUnit file; exit with the code of the run."""
    from builder.publish.build_text import build_text, distinct_errors  # noqa: PLC0415
    from builder.publish.report import build_junit, report_json  # noqa: PLC0415
    from builder.store import write_atomic  # noqa: PLC0415

    plan, results, torch_index = outcome
    for error, builds in distinct_errors(results):
        print_error(error, who=builds)
    if junit:
        write_atomic(junit.absolute(), build_junit(results).encode())
    print_data(report_json(plan, results) if as_json else build_text(dist, plan, results, torch_index))
    raise typer.Exit(int(max((result.exit for result in results), default=Exit.OK)))


def _added(source: str | None, *, write: bool, **options: Any) -> Added | None:  # noqa: ANN401 - of AddOptions
    """Add the source, if any, to the project; print what was found to stderr."""
    if not source:
        return None
    from builder.commands.add.add import AddOptions, run_add  # noqa: PLC0415 - loads slowly
    from builder.recipes.added import added_text  # noqa: PLC0415

    added = run_add(AddOptions(source=source, **options), write=write)
    print_line(added_text(added).rstrip())
    return added
