"""The story of one build: each step is a call that takes what the last one returned.

    plan       matrix.yaml, recipes, options → the builds       `read_plan`; `BuildRun` then tells this story for each
    prepare    a build → its tools                              `Executor.prepare`
    fetch      a recipe → the source tree                       `prepare_source`
    compile    tools and tree → the raw wheel                   `compile_wheel`
    repair     the raw wheel → a portable wheel and its record  `repair_wheel`
    prove      the wheel → a proof for each check and cell      `WheelProver.prove`
    publish    the wheels without a failed check → dist/        `publish`

`rebuild` takes the steps from prepare to repair, a worker of a scheduler those from prepare to prove. `smoke` proves a
wheel in a cell with `CellRunner.run`, as `WheelProver` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.building.preflight import BuildOrder, Parallelism
from builder.errors import BuildfarmError
from builder.log import print_line, print_warning
from builder.matrix.compat import and_list
from builder.matrix.config import Recipe
from builder.matrix.plan import Build, Plan
from builder.process import Interrupted
from builder.progress.display import Progress
from builder.proof import Verdict
from builder.proofs.cells.prover import WheelProver
from builder.publish.dist import locked, publish_wheels
from builder.recipes.inspection.native_code import needless_headers, too_many_headers
from builder.result import BuildResult
from builder.store import Store, StoredBuild, work_name
from builder.wheels.job import WAITS, CompileJob, Executor, Prepared, build_digest
from builder.wheels.sources.prepare import (
    PreparedSource,
    changed_files,
    prepare_source,
    project_folder,
    source_digest,
)

#: Seconds of a build after which a cure is named.
_SLOW = 60


@dataclass
class Farm:
    """What the builds of a run share."""

    store: Store
    executor: Executor
    #: Proves the wheels; None: they are only built.
    prover: WheelProver | None
    recipes: Mapping[str, Recipe]
    progress: Progress
    #: Whether the user accepts a CUDA toolkit of another minor.
    minor_mismatch: bool = False
    parallelism: Parallelism = field(default_factory=Parallelism)
    order: BuildOrder = field(default_factory=lambda: BuildOrder(()))
    #: The warnings that this run has printed.
    said: set[str] = field(default_factory=set)

    def stored(self, build: Build, prepared: Prepared) -> StoredBuild | None:
        """The wheel of a build that an earlier run made with these tools from this source, or None."""
        recipe = self.recipes[build.extension]
        return self.store.take(build_digest(build, recipe, prepared.toolchain, source_digest(recipe)))

    def warn_once(self, build: Build, sentence: str) -> None:
        """Print a warning about the source of an extension, for the first of its builds."""
        if sentence and (warning := f"{build.extension}: {sentence}") not in self.said:
            self.said.add(warning)
            print_warning(warning)


def build_and_prove(farm: Farm, build: Build) -> BuildResult:
    """One build from its recipe to its proofs; an error becomes the result, and the other builds go on."""
    name, started, log = str(build), time.monotonic(), farm.store.log(str(build))
    recipe, stage = farm.recipes[build.extension], partial(farm.progress.stage, name)
    result = BuildResult(build, None, None, reused=False, seconds=0, log=log)
    farm.progress.start(name, log)
    try:
        stage("prepare")
        prepared = farm.executor.prepare(build, recipe, log=log)
        result = replace(result, toolchain=prepared.toolchain)
        stored = farm.stored(build, prepared)
        reused = stored is not None
        if stored is None:
            waits = f"waiting for another build of {build.extension}, whose objects this build uses"
            with farm.order.compiling(build, farm.parallelism, partial(stage, waits)) as jobs:
                stored = make_wheel(farm, build, prepared, log, jobs, stage)
        else:
            FolderBuilds(farm.store).remember(build, recipe, stored.digest)
        result = replace(result, stored=stored)
        proofs = []
        if farm.prover:
            proofs = farm.prover.prove(farm.prover.subject(stored, build, recipe), log=log, stage=stage)
    except BuildfarmError as error:
        farm.progress.finish(name, f"failed: {error}")
        return replace(result, error=error, seconds=time.monotonic() - started)
    except Interrupted:
        farm.progress.finish(name, "failed: interrupted")
        raise
    failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
    outcome = f"failed: {failed[0].check}" if failed else "already built, checked" if reused else "built"
    farm.progress.finish(name, outcome)
    return replace(result, reused=reused, proofs=tuple(proofs), seconds=time.monotonic() - started)


def make_wheel(
    farm: Farm, build: Build, prepared: Prepared, log: Path, jobs: int, stage: Callable[[str], None]
) -> StoredBuild:
    """Fetch, compile, repair, and add to the store; only once, even if several buildfarm processes share the store."""
    from builder.wheels.make import compile_wheel, repair_wheel  # noqa: PLC0415 - only a build that compiles needs it

    name, recipe, store = str(build), farm.recipes[build.extension], farm.store
    with store.lock(f"source-{name}", wait=False) as free:
        if not free:
            stage(WAITS)
    with store.work(f"source-{name}") as scratch:
        stage("fetch")
        (scratch / "src").mkdir()
        source = prepare_source(recipe, scratch / "src", cache=store.root / "sources")
        # The digest is that of the copy: files may change meanwhile.
        digest = build_digest(build, recipe, prepared.toolchain, source.digest)
        with store.work(work_name(digest)) as work:
            if stored := store.take(digest):  # the other process made it
                FolderBuilds(store).remember(build, recipe, digest)
                return stored
            _tell_before_compile(farm, build, source, digest)
            (scratch / "src").rename(work / "src")
            log.write_bytes(b"")
            job = CompileJob(
                build,
                recipe,
                prepared.toolchain,
                project_folder(recipe, work / "src"),
                work,
                log,
                jobs,
                digest,
                store.owner(work_name(digest)),
            )
            farm.progress.read_calls(name, job.calls)
            needless = needless_headers(job.source)  # before the compile, which may move the source away
            raw = compile_wheel(prepared, job, stage)
            wheel, record = repair_wheel(raw, source.digest, stage, minor_mismatch=farm.minor_mismatch)
            if needless and record.seconds >= _SLOW:
                farm.warn_once(build, f"the build took {record.seconds:.0f} s: {too_many_headers(needless)}")
            stored = store.add(digest, wheel, record)
            FolderBuilds(store).remember(build, recipe, digest, source.files)
    if changed := changed_files(recipe, source):
        print_warning(
            f"{recipe.folder}: {and_list(changed[:3])} changed during the build. The wheel contains the earlier"
            " content, and the next run builds the wheel again. Move files that are not source out of the folder,"
            " or into one whose own .gitignore is `*`. In a git work tree, .gitignore may also name them."
        )
    return stored


def _tell_before_compile(farm: Farm, build: Build, source: PreparedSource, digest: str) -> None:
    """Say why a wheel is compiled again, and whether `publish` will refuse it."""
    remembered, recipe = FolderBuilds(farm.store), farm.recipes[build.extension]
    if why := remembered.why(build, recipe, source.files):
        print_line(f"{build}: {why}")
    if warning := remembered.warning(build, recipe, digest):
        print_warning(warning)


def publish(dist: Path, plan: Plan, results: Sequence[BuildResult]) -> None:
    """Write the wheels without a failed check to `dist`, and tell what changed there."""
    with locked(dist):
        published = publish_wheels(dist, plan, results)
        for event in published.events:
            print_line(f"{dist}: {event}")
        for removed in published.removed:  # also with --quiet
            print_warning(f"{dist}: {removed}")
