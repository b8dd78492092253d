"""`buildfarm build`: plan, build what the store lacks, prove each wheel in its cells, and fill `dist/`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.markup import escape

from builder.cli.options import SOURCE, RunOptions, SelectOptions, architectures, architectures_hint
from builder.commands.axes import reads_unknown
from builder.commands.building.preflight import RunSettings, choose_executor
from builder.commands.building.story import BuildRun, LocalRun
from builder.commands.distributed.options import WorkersOptions
from builder.commands.folders import DIST, check_output, new_output, open_store
from builder.errors import BuildfarmError, Exit
from builder.gate.amounts import counted, grouped, size_text
from builder.gate.outcome import FAILED
from builder.gate.report import KINDS
from builder.log import print_data, print_error, print_line, print_warning, verbosity
from builder.matrix.axes import Arch
from builder.matrix.compat import Compat
from builder.matrix.config import MATRIX, TORCH_INDEX, Matrix, Recipe
from builder.matrix.load import load_matrix, read_plan
from builder.matrix.plan import Build, Plan, select_versions
from builder.option import argument, flag, option
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.publish import terminal
from builder.publish.index.install import install_commands, install_lines
from builder.publish.proof_lines import counts, gpu_lines, gradient_text, gradients_of, uncompiled_text
from builder.publish.provenance import SUFFIX
from builder.publish.results import BuildResult, causes_of_builds, publish_wheels, report_json
from builder.publish.runs.history import save_run
from builder.publish.runs.markdown import append_summary
from builder.records import Part
from builder.store import Store
from builder.tested_versions import installed_versions, unsafe_images, untested
from builder.wheels.toolchain.environments import Environments

if TYPE_CHECKING:
    from builder.commands.add import Added


@dataclass(frozen=True, kw_only=True)
class BuildOptions(WorkersOptions, SelectOptions, RunOptions):
    """The options of `buildfarm build`."""

    source: str | None = argument(
        f"First add this source, as `buildfarm add` does, then build only this source. {SOURCE}", "SOURCE", default=None
    )
    arch: list[str] | None = None
    matrix: Path = MATRIX
    executor: Literal["auto", "local", "docker"] = option(
        "auto: local if the CUDA toolkit is on this machine or on the package index, else docker.",
        default="auto",
    )
    jobs: int | None = None
    minor_mismatch: bool = False
    no_compiler_cache: bool = flag("Compile without sccache, so that no compiled object is reused.")
    no_cures: bool = flag(
        "Stop at the first error of a compiler. Without this option, buildfarm applies the cures that it knows"
        " to a source that it fetched, writes them to the recipe's folder, and compiles again."
    )
    recheck: bool = flag("Run every check of the selected wheels again, also checks that passed or failed before.")
    dist: Path = DIST
    summary: Path | None = None

    @cached_property
    def archs(self) -> tuple[Arch, ...]:
        """GPU architectures instead of those of the matrix and the recipes; empty: no change. Raises UsageError."""
        return architectures(self.arch)


@reads_unknown
def build(options: BuildOptions) -> Exit:
    """Build the selected wheels, test them in their cells, and write them to dist/ with an index for pip and uv.

    Examples:
        buildfarm build --torch 2.2 --cuda 12.1
        buildfarm build --torch 2.11 --cuda 13.0 --python 3.12
        buildfarm build torch-scatter==2.1.2 --torch 2.11 --cuda 13.0
        buildfarm build --ext ms_deform_attn --executor docker --jobs 8
    """
    options.check_workers()
    _ = options.archs  # may raise, so before a recipe is written
    if added := _added(options):
        options = replace(options, ext=[*(options.ext or ()), added.recipe.name])
    options = replace(options, dist=options.dist.absolute())
    plan, results, torch_index = run_build(options)
    text = report_json(plan, results) if options.as_json else build_text(options.dist, plan, results, torch_index)
    print_data(text)
    for error, failed in distinct_errors(results):  # after the wheels, which would hide them
        print_error(error, who=failed)
    return max((result.exit for result in results), default=Exit.OK)


def _added(options: BuildOptions) -> Added | None:
    """Add the source, if any, to the project; print what was found to stderr."""
    if not options.source:
        return None
    from builder.commands.add import AddOptions, added_text, run_add  # noqa: PLC0415 - loads slowly

    if options.matrix.exists():  # a selection without a cell must not change the project
        select_versions(load_matrix(options.matrix), options.select, Compat.load())
        Compat.load().check_archs(options.archs, "--arch")
    added = run_add(AddOptions(**{one.name: getattr(options, one.name) for one in fields(AddOptions)}))
    print_line(added_text(added).rstrip())
    return added


def run_build(options: BuildOptions) -> tuple[Plan, list[BuildResult], str]:
    """Build the selected wheels, prove them as far as this machine can, and put the good ones into `dist`.

    Returns the plan, the result of each build, and the index of torch's CUDA variants, as in matrix.yaml.

    Raises UsageError or NothingSelectedError for the matrix and the options, PreflightError (or the only problem) for
    what the machine lacks. A build that fails later is a result with its error.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    matrix, recipes, plan = read_plan(options.matrix, options.select, options.archs)
    check_output(options.dist, "--dist")
    store = open_store(options.store)
    images = [name for rule in matrix.images for name in (rule.image, rule.pythons, rule.runtime)]
    if sentences := [*untested(installed_versions()), *unsafe_images(images)]:
        print_warning("; ".join(sentences))
    run = _run(options, matrix, recipes, plan, store)
    stored = run.stored(plan.builds)
    if hint := hint_of(options, stored):
        print_line(hint)

    results = run.build_all(stored)
    new_output(options.dist, "--dist")
    report = publish_wheels(options.dist, plan, results, store)
    saved = save_run(
        store,
        started,
        time.monotonic() - clock,
        report,
        logs={str(one.build): one.log for one in results if one.exit and one.log and one.log.is_file()},
        reused=[str(result.build) for result in results if result.reused],
        timeline=run.progress.timeline(),
    )
    if options.summary:
        append_summary(options.summary, saved)
    return plan, results, matrix.torch_index


def _run(options: BuildOptions, matrix: Matrix, recipes: dict[str, Recipe], plan: Plan, store: Store) -> BuildRun:
    """The run on this machine, or on the workers of a scheduler."""
    environments = Environments(store, matrix.torch_index)
    cached = not options.no_compiler_cache
    settings = RunSettings(matrix, options.executor, options.minor_mismatch, compiler_cache=cached)
    if options.scheduler:
        from builder.commands.distributed.client import RemoteRun  # noqa: PLC0415 - imports Dask

        prover = WheelProver(store, environments, again=options.recheck)
        return RemoteRun(store, recipes, prover, settings, options)
    executor = choose_executor(settings, plan.builds, environments)
    if options.saved:
        from builder.images.saved import check_cells  # noqa: PLC0415 - loads slowly

        check_cells([str(cell) for build in plan.builds for cell in build.serves], executor.name)
    # A container's wheel may need a newer glibc than this machine has. Such a wheel is proven in the runtime image.
    images = matrix if executor.name == "docker" else None
    prover = WheelProver(store, environments, images, again=options.recheck)
    return LocalRun(
        store,
        recipes,
        prover,
        executor,
        jobs=options.jobs,
        minor_mismatch=options.minor_mismatch,
        cures=not options.no_cures,
    )


def hint_of(options: BuildOptions, stored: Mapping[Build, bool]) -> str:
    """How to compile for fewer GPU architectures; empty if the user chose them, or if nothing is to compile."""
    return "" if options.archs else architectures_hint([build for build, there in stored.items() if not there])


def build_text(dist: Path, plan: Plan, results: Sequence[BuildResult], torch_index: str = TORCH_INDEX) -> str:
    """The wheels, why checks did not run, the commands that install the wheels, and last why checks failed.

    `torch_index` is the index of torch's CUDA variants, as in matrix.yaml. The text is empty when no build made a
    wheel: the errors are printed after it.
    """
    if not any(result.stored for result in results):
        return ""
    causes = causes_of_builds(results)
    blocks = [
        [line for result in results for line in _lines(result)],
        [
            *terminal.cause_lines(causes, [kind for kind in KINDS if kind != FAILED]),
            *(
                terminal.marked(each)
                for result in results
                for each in gpu_lines(result.proofs, terminal.output_width())
            ),
            *(escape(note) for note in dict.fromkeys(note for result in results for note in _notes(result))),
        ],
    ]
    if good := [(result.stored.wheel, result.build.serves) for result in results if result.stored and not result.exit]:
        # The commands for pip and uv, once for each version: the folder has the wheel for each Python.
        commands: list[str] = []
        for wheel, serves in good:
            name, version = wheel.name.split("-")[:2]
            commands += install_commands(dist.resolve(), name, version, serves, torch_index)
        cells = [cell for _, serves in good for cell in serves]
        blocks.append([*map(escape, install_lines(cells, [*dict.fromkeys(commands)]))])
        if verbosity.verbose:
            blocks[-1].append(
                f"The provenance of each wheel (SLSA, unsigned) is next to the wheel, in NAME.whl{SUFFIX}"
            )
    if plan.skips:
        skipped = f"{counted(len(plan.skips), 'cell')} {'is' if len(plan.skips) == 1 else 'are'} skipped"
        blocks.append([f"{skipped}; `buildfarm plan` with the same selection gives the reasons."])
    problems = [result.problem for result in results if result.refused]
    hints = terminal.hint_lines(hint for problem in problems if problem for hint in problem.hints)
    blocks.append([*terminal.cause_lines(causes, [FAILED]), *hints])
    return terminal.to_text(*[part for block in blocks if block for part in ["", *block]][1:])


def distinct_errors(results: Sequence[BuildResult]) -> list[tuple[BuildfarmError, list[str]]]:
    """The distinct errors of a run, each with the names of the builds that it stopped."""
    stopped = grouped((str(one.error), (one.error, str(one.build))) for one in results if one.error)
    return [(found[0][0], [build for _, build in found]) for found in stopped.values()]


def _lines(result: BuildResult) -> list[str]:
    """One build in rich markup: a line for its wheel, and one for its figures."""
    cells = counted(len(result.build.serves), "cell")
    seconds = "reused" if result.reused else f"{result.seconds:.0f} s"
    if result.stored is None:
        return [f"[red]{escape(str(result.build))}[/] (failed)", f"  {cells}; {seconds}"]
    name, size = escape(result.stored.wheel.name), size_text(result.stored.wheel.stat().st_size)
    if result.exit:  # a fault of the wheel, or a mistake in cases.py
        name = f"[red]{name}[/] ({'cases.py is wrong' if result.mistake_in_cases else 'refused'})"
    checks = terminal.coloured_counts(counts(result.proofs))
    return [name, f"  {size}, {cells}; checks: {checks}; GPU: {_gpu(result.proofs)}; {seconds}"]


def _gpu(proofs: Sequence[Proof]) -> str:
    """In how many cells the values on a GPU were checked."""
    verdicts = Counter(proof.verdict for proof in proofs if proof.check is Check.GPU_VALUES)
    if verdicts[Verdict.FAILED]:
        return "failed"
    if not verdicts[Verdict.PASSED]:
        return "accepted" if verdicts[Verdict.ACCEPTED] else "not run"
    all_passed = verdicts[Verdict.PASSED] == verdicts.total()
    return "passed" if all_passed else f"{verdicts[Verdict.PASSED]} of {verdicts.total()}"


def _notes(result: BuildResult) -> list[str]:
    """What is special about its compile."""
    lines = []
    if gradients := gradient_text(gradients_of(result.proofs)):
        lines.append(f"{result.build}: gradients: {gradients}")
    if uncompiled := uncompiled_text(result.proofs):
        lines.append(f"{result.build}: {uncompiled}")
    if result.stored and (wanted := result.stored.record.record.toolchain.get(Part.REQUESTED_CUDA)):
        nvcc = result.stored.record.record.toolchain.get(Part.NVCC)
        lines.append(f"{result.build}: compiled with CUDA {nvcc} instead of {wanted}")
    if result.stored and not result.reused and (objects := result.stored.record.objects):
        # The reason why the cache was not used is that of many builds, and is shown once.
        lines.append(objects.sentence() if objects.refused else f"{result.build}: {objects.sentence()}")
    return lines
