"""`buildfarm build`: plan, build what the store lacks, prove each wheel in its cells, and fill `dist/`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from builder.commands.building.build_run import BuildRun
from builder.commands.building.executor_choice import choose_executor, override_base_image
from builder.commands.folders import check_dist, open_store
from builder.errors import UsageError
from builder.log import print_line, print_warning
from builder.matrix.axes import Arch
from builder.matrix.config import Matrix, Recipe, Selection
from builder.matrix.load import read_plan
from builder.matrix.plan import Build, Plan
from builder.proofs.cells.acceptance import unused_accepts
from builder.proofs.cells.prover import WheelProver
from builder.publish.dist import publish_wheels
from builder.publish.index.dist_index import write_index
from builder.publish.plan_text import architectures_hint
from builder.publish.report import report_json
from builder.result import BuildResult
from builder.storage.runs import save_run
from builder.store import Store
from builder.tested_versions import untested
from builder.wheels.build_dir import clear_abandoned
from builder.wheels.job import Executor
from builder.wheels.toolchain.environments import Environments


@dataclass(frozen=True)
class BuildOptions:
    """The options of one `buildfarm build`.

    Attributes:
        matrix: the file matrix.yaml.
        select: which cells and extensions.
        archs: GPU architectures instead of the ones in the matrix and the recipes; empty: no change.
        executor: `auto`, `local` or `docker`.
        image: base image instead of the ones in the matrix, or None.
        jobs: number of parallel compilers, or None for a number that fits cores and memory.
        stand_in: whether a CUDA toolkit of the same major and another minor is accepted.
        compiler_cache: whether compilers run through sccache.
        pull: whether base images that are not on this machine may be pulled.
        python_downloads: whether uv may download Pythons that this machine lacks.
        reprove: whether every check runs again, also those that are decided.
        store: its folder, or None for the user's default store.
        dist: the folder for wheels, report.json and the index.

    """

    matrix: Path
    select: Selection = field(default_factory=Selection)
    archs: tuple[Arch, ...] = ()
    executor: str = "auto"
    image: str | None = None
    jobs: int | None = None
    stand_in: bool = False
    compiler_cache: bool = True
    pull: bool = True
    python_downloads: bool = True
    reprove: bool = False
    store: Path | None = None
    dist: Path = Path("dist")


class BuildOutcome(NamedTuple):
    """What a run planned and made; `torch_index` is that of matrix.yaml."""

    plan: Plan
    results: list[BuildResult]
    torch_index: str


def run_build(options: BuildOptions) -> BuildOutcome:
    """Build the selected wheels, prove them as far as this machine can, and put the good ones into `dist`.

    Raises UsageError or NothingSelectedError for the matrix and the options, PreflightError (or the only problem) for
    what the machine lacks. A build that fails later is a result with its error.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    matrix, recipes, plan = read_plan(options.matrix, options.select, options.archs)
    matrix = override_base_image(matrix, options.image)
    check_dist(options.dist)
    store = open_store(options.store)
    store.clear_abandoned()
    clear_abandoned()
    environments = Environments(store, matrix.torch_index, python_downloads=options.python_downloads)
    executor = _executor(options, matrix, plan, environments)
    if options.image and options.executor == "local":
        print_warning("`--image` has no effect with `--executor local`")
    if sentences := untested().values():
        print_warning("; ".join(sentences))
    # A container's wheel may need a newer glibc than this machine has. Such a wheel is proven in the runtime image.
    images = matrix if executor.name == "docker" else None
    prover = WheelProver(store, environments, images, pull=options.pull, again=options.reprove)
    run = BuildRun(store, executor, prover, recipes, jobs=options.jobs, stand_in=options.stand_in)
    stored = run.stored(plan.builds)
    if hint := hint_of(options, stored):
        print_line(hint)
    try:
        results = run.build_all(stored)
        _warn_of_unused_accepts(recipes.values(), results)
        _publish(options.dist, plan, results)
    except KeyboardInterrupt:
        unfinished = [str(build) for build in plan.builds if build not in run.finished]
        _save_run(store, started, time.monotonic() - clock, plan, list(run.finished.values()), unfinished)
        raise
    _save_run(store, started, time.monotonic() - clock, plan, results)
    return BuildOutcome(plan, results, matrix.torch_index)


def dry_run(options: BuildOptions) -> dict[Build, bool]:
    """Each build of the plan, and whether the store has its wheel. Pulls, downloads and builds nothing.

    Raises what `run_build` raises for the matrix and the options.
    """
    matrix, recipes, plan = read_plan(options.matrix, options.select, options.archs)
    matrix = override_base_image(matrix, options.image)
    store = open_store(options.store)
    environments = Environments(store, matrix.torch_index, python_downloads=False)
    executor = _executor(replace(options, pull=False), matrix, plan, environments, check_images=False)
    run = BuildRun(store, executor, WheelProver(store, environments), recipes, stand_in=options.stand_in)
    return run.stored(plan.builds)


def hint_of(options: BuildOptions, stored: Mapping[Build, bool]) -> str:
    """How to compile for fewer GPU architectures; empty if the user chose them, or if nothing is to compile."""
    return "" if options.archs else architectures_hint([build for build, there in stored.items() if not there])


def _executor(
    options: BuildOptions, matrix: Matrix, plan: Plan, environments: Environments, *, check_images: bool = True
) -> Executor:
    return choose_executor(
        # Who names an image wants a container.
        "docker" if options.image and options.executor == "auto" else options.executor,
        matrix,
        plan.builds,
        environments,
        stand_in=options.stand_in,
        compiler_cache=options.compiler_cache,
        pull=options.pull,
        check_images=check_images,
    )


def _publish(dist: Path, plan: Plan, results: Sequence[BuildResult]) -> None:
    published = publish_wheels(dist, plan, results)
    for event in published.events:
        print_line(f"{dist}: {event}")
    for removed in published.removed:  # also with --quiet
        print_warning(f"{dist}: {removed}")
    _update_index(dist, published.wheels)


def _save_run(
    store: Store,
    started: datetime,
    seconds: float,
    plan: Plan,
    results: Sequence[BuildResult],
    unfinished: Sequence[str] | None = None,
) -> None:
    logs = {str(result.build): result.log for result in results if result.exit and result.log and result.log.is_file()}
    save_run(store, started, seconds, report_json(plan, results), logs=logs, unfinished=unfinished)


def _warn_of_unused_accepts(recipes: Iterable[Recipe], results: Sequence[BuildResult]) -> None:
    for recipe in recipes:
        proofs = [proof for result in results if result.build.extension == recipe.name for proof in result.proofs]
        for sentence in unused_accepts(recipe, proofs):
            print_warning(f"{recipe.name}: {sentence}")


def _update_index(dist: Path, published: Sequence[Path]) -> None:
    """List every wheel of `dist` in its index; if one of them cannot be read, only the wheels of this run."""
    try:
        write_index(dist, sorted(dist.glob("*.whl")))
    except UsageError as error:  # a file that somebody else put there
        print_warning(f"{error}; the index therefore lists only the wheels of this run")
        write_index(dist, published)
