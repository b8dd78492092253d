"""`buildfarm smoke`: run every op of a wheel in each of its cells, and keep the proofs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from packaging.utils import canonicalize_name

from builder.commands.axes import matrix_or_options
from builder.commands.distributed.options import RemoteOptions
from builder.commands.distributed.protocol import Settings
from builder.commands.folders import open_store
from builder.commands.smoke.cells import cell_environments
from builder.commands.smoke.kept import Kept, outcome_of
from builder.commands.smoke.smoke_targets import SmokeTarget, TargetFinder
from builder.commands.smoke.wheel_recipe import selected_recipes
from builder.errors import UsageError
from builder.gate.outcome import Answer
from builder.gate.pack import pack_file
from builder.log import print_warning
from builder.matrix.axes import Cell
from builder.matrix.config import Matrix, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.progress.display import Progress
from builder.proof import Proof
from builder.proofs.cells.cell_environment import CellEnvironments
from builder.proofs.cells.cell_run import CellRunner
from builder.proofs.cells.op_gate import spec_of
from builder.proofs.verify.clash import Together, clashes_together, files_of
from builder.publish.report import smoke_report_json
from builder.publish.runs.markdown import append_summary
from builder.result import SmokeResult
from builder.storage.runs import save_run
from builder.store import Store
from builder.timeline.recorder import Recorder
from builder.wheelfile.exports import read_op_libraries
from builder.wheelfile.facts import open_wheel, read_facts


@dataclass(frozen=True)
class SmokeOptions:
    """The options of one `buildfarm smoke`.

    Attributes:
        matrix: the file matrix.yaml, or None: the one of the current folder; without it, `matrix_or_options`.
        wheels: files, URLs or NAME==VERSION; empty: the wheels in `dist`, and official wheels that recipes name.
        select: which cells and extensions.
        index: URL of a package index to ask before the default one, or empty.
        dist: the folder of the wheels to test by default.
        store: its folder, or None for the user's default store.
        executor: `local` for a uv environment per cell, `docker` for a container of each cell's runtime image.
        pull: whether base images that are not on this machine may be pulled.
        python_downloads: whether uv may download Pythons that this machine lacks.
        summary: a file that gets the report of the run as Markdown, or None.
        remote: run the checks on the workers of a scheduler; None: on this machine.

    """

    matrix: Path | None = None
    wheels: tuple[str, ...] = ()
    select: Selection = field(default_factory=Selection)
    index: str = ""
    dist: Path = Path("dist")
    store: Path | None = None
    executor: str = "local"
    pull: bool = True
    python_downloads: bool = True
    summary: Path | None = None
    remote: RemoteOptions | None = None


def run_smoke(options: SmokeOptions) -> Iterator[SmokeResult]:
    """Test each wheel in each of its cells, and save the proofs of each cell at once.

    On this machine one cell is tested after the other; with `remote` the workers test as many as they can. A wheel that
    `build` wrote has a file with proofs beside it. The new proofs are added to this file.

    Raises UsageError for an unusable wheel, file of proofs or selection, NothingSelectedError when no cell is left,
    MissingToolError when containers are wanted and there is no container engine, or when the scheduler does not answer.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    matrix = matrix_or_options(options.matrix, options.select, options.wheels)
    recipes = load_recipes(matrix)
    store = open_store(options.store)
    store.clear_abandoned()
    cells = None
    if not options.remote:
        downloads, pull = options.python_downloads, options.pull
        cells = cell_environments(options.executor, matrix, store, python_downloads=downloads, pull=pull)
    finder = TargetFinder(matrix, recipes, options.select, cache=store.root / "sources", index=options.index)
    targets, progress, recorder = finder.find(options.wheels, options.dist), Progress(), Recorder(store.owner(""))
    _warn_of_clashes(targets)
    kept = Kept(store, recorder, targets)
    with recorder.recording(), progress.shown():
        if cells is None:
            yield from _on_workers(options, matrix, store, targets, kept, progress)
        else:
            for target in targets:
                for cell in target.cells:
                    yield _smoke_cell(target, cell, store, cells, kept, progress)
    timeline = recorder.timeline(progress.stages())
    report = smoke_report_json(kept.results, kept.known)
    run = save_run(store, started, time.monotonic() - clock, report, timeline=timeline)
    if options.summary:
        append_summary(options.summary, run)


def _warn_of_clashes(targets: Sequence[SmokeTarget]) -> None:
    """Print what keeps wheels of different projects from being used together. Each cell tests one wheel alone."""
    if len({_project(target) for target in targets}) < 2:
        return
    seen: list[Together] = []
    for target in targets:
        facts = read_facts(target.wheel)
        with open_wheel(target.wheel) as wheel:
            libraries, files = read_op_libraries(wheel, facts.libraries), files_of(wheel)
        name = f"{facts.name} {facts.version}"
        own = Together(_project(target), name, frozenset(target.cells), libraries, files)
        for sentence in clashes_together(own, seen):
            print_warning(f"{target.wheel.name}: {sentence}")
        seen.append(own)


def _project(target: SmokeTarget) -> str:
    return canonicalize_name(target.wheel.name.partition("-")[0])


def _smoke_cell(
    target: SmokeTarget, cell: Cell, store: Store, cells: CellEnvironments, kept: Kept, progress: Progress
) -> SmokeResult:
    """Test one wheel in one cell, and save its proofs."""
    name, log = f"{target.wheel.name} in {cell}", store.log(f"smoke-{target.wheel.name}-{cell}")
    progress.start(name, log)

    def stage(step: str) -> None:
        progress.stage(name, step.removesuffix(f" in {cell}"))

    runner = CellRunner(store, cells, log, stage, linkage=False)
    run = runner.run(cell, target.wheel, target.sha256, target.recipe)
    result = kept.add(target, cell, run.proofs, run.answer)
    progress.finish(name, outcome_of(result))
    kept.warn_of_unused_accepts(target, result)
    return result


def _on_workers(
    options: SmokeOptions, matrix: Matrix, store: Store, targets: Sequence[SmokeTarget], kept: Kept, progress: Progress
) -> list[SmokeResult]:
    """Test every wheel in its cells on workers; the results have the order of `targets`."""
    from builder.commands.distributed.client.smoke import RemoteSmoke  # noqa: PLC0415 - imports Dask

    made: dict[tuple[int, Cell], SmokeResult] = {}

    def keep(target: SmokeTarget, cell: Cell, proofs: Sequence[Proof], answer: Answer | None) -> str:
        made[id(target), cell] = result = kept.add(target, cell, proofs, answer)
        return outcome_of(result)

    settings = Settings(matrix, options.executor, pull=options.pull, python_downloads=options.python_downloads)
    RemoteSmoke(store, settings, cast("RemoteOptions", options.remote), progress, keep).run(targets)
    kept.results = [made[id(target), cell] for target in targets for cell in target.cells]
    for target in targets:
        for cell in target.cells:
            kept.warn_of_unused_accepts(target, made[id(target), cell])
    return kept.results


def pack_gate(matrix: Path, select: Selection, target: Path) -> Path:
    """Write the op gate and the cases of one extension to one file, for a machine that has only torch and the wheel.

    Raises UsageError unless exactly one extension is selected, or when the file cannot be written.
    """
    recipes = selected_recipes(load_recipes(load_matrix(matrix)), select)
    if len(recipes) != 1 or not select.extensions:
        raise UsageError(
            "name exactly one extension with --ext NAME: the file holds the cases of one extension", where="--pack"
        )
    try:
        return pack_file(target, spec_of(recipes[0], 0), recipes[0].cases)
    except OSError as error:
        raise UsageError(f"cannot write this file: {error.strerror}", where=str(target)) from None
