"""The story of one build: each step is a call that takes what the last one returned.

    plan       matrix.yaml, recipes, options → the builds       `read_plan`; `build_all` then tells this story for each
    prepare    a build → its tools                              `Executor.prepare`
    fetch      a recipe → the source tree                       `prepare_source`
    compile    tools and tree → the raw wheel                   `compile_wheel`
    repair     the raw wheel → a portable wheel and its record  `repair_wheel`
    prove      the wheel → a proof for each check and cell      `WheelProver.prove`
    publish    the wheels without a failed check → dist/        `publish_wheels`

`rebuild` takes the steps from prepare to repair, a worker of a scheduler those from prepare to prove. `smoke` proves a
wheel in a cell with `CellRunner.run`, as `WheelProver` does.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from builder.commands.building import folder_builds
from builder.commands.building.preflight import BuildPlace, places, preflight
from builder.errors import BuildfarmError
from builder.log import print_line, print_warning
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import Interrupted, in_threads
from builder.progress.display import WAITS, Progress
from builder.proof import Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.publish.results import BuildResult
from builder.publish.runs.history import last_steps
from builder.records import Part
from builder.store import Store, StoredBuild, project_key, work_name
from builder.wheels.failures import CompileError
from builder.wheels.job import CompileJob, Executor, NotPreparedError, Prepared, build_digest
from builder.wheels.sources.prepare import prepare_source, source_digest

#: Seconds of a build after which a cure is named.
_SLOW = 60


@dataclass(eq=False)
class BuildRun(ABC):
    """The builds of one run: `LocalRun` makes them on this machine, `RemoteRun` on workers."""

    store: Store
    #: By name. A cure replaces one.
    recipes: dict[str, Recipe]
    #: It proves the wheels; None: they are only built.
    prover: WheelProver | None
    #: It shows the builds.
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(last=partial(last_steps, self.store))

    def log(self, build: Build) -> Path:
        """The file with the output of the programs of a build."""
        return self.store.log(str(build), self.recipes[build.extension].folder)

    @abstractmethod
    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """Each build, and whether the store has its wheel, as far as this is known without an environment or image."""

    @abstractmethod
    def start(self, builds: Mapping[Build, bool]) -> tuple[int, Sequence[Build]]:
        """Get ready for the builds; return how many run at a time, and their order. Raises what prevents all builds."""

    @abstractmethod
    def make(self, build: Build, log: Path, stage: Callable[[str], None]) -> tuple[StoredBuild, bool]:
        """The wheel of a build in the store, and whether it was there before."""

    @abstractmethod
    def prove(self, build: Build, stored: StoredBuild, log: Path, stage: Callable[[str], None]) -> list[Proof]:
        """The proofs of its wheel."""

    def end(self) -> None:  # noqa: B027 - nothing to end on this machine
        """Give up what still runs elsewhere."""

    def build_all(self, builds: Mapping[Build, bool]) -> list[BuildResult]:
        """Build and prove each build once; the results have the order of `builds`, the value of `stored`.

        Raises what `start` raises. A build that fails is a result with its error.
        """
        at_once, ordered = self.start(builds)
        try:
            with self.progress.shown():
                made = in_threads([partial(self._build_and_prove, build) for build in ordered], at_once)
        finally:
            self.end()  # when no thread waits for an answer any more, which would never come
        results = {result.build: result for result in made}
        return [results[build] for build in builds]

    def _build_and_prove(self, build: Build) -> BuildResult:
        """One build from its recipe to its proofs; an error becomes the result, and the other builds go on."""
        name, log = str(build), self.log(build)
        stage = partial(self.progress.stage, name)
        stored: StoredBuild | None = None
        reused, error, proofs = False, None, list[Proof]()
        self.progress.start(name, log)
        try:
            stored, reused = self.make(build, log, stage)
            folder_builds.remember(self.store, build, self.recipes[build.extension], stored.digest)
            proofs = self.prove(build, stored, log, stage)
        except BuildfarmError as problem:
            error, reused = problem, False
        except Interrupted:
            self.progress.finish(name, "failed: interrupted")
            raise
        failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
        outcome = f"failed: {error or failed[0].check}" if error or failed else ""
        seconds = self.progress.finish(name, outcome or ("already built, checked" if reused else "built"))
        return BuildResult(build, stored, error, reused, seconds, tuple(proofs), log)


@dataclass(eq=False)
class LocalRun(BuildRun):
    """Builds the wheels of one run on this machine."""

    executor: Executor
    #: Number of parallel compilers of the run; None: as cores and memory allow.
    jobs: int | None = None
    #: Whether a CUDA toolkit of another minor was accepted.
    minor_mismatch: bool = False
    #: Whether a build that fails for a known cause is cured and compiled again.
    cures: bool = False
    _curing: threading.Lock = field(default_factory=threading.Lock, init=False)
    _places: dict[Build, BuildPlace] = field(default_factory=dict, init=False)
    _warn_once: Callable[[str], None] = field(default_factory=lambda: cache(print_warning), init=False)
    _compared: dict[tuple[str, str | None], Proof | None] = field(default_factory=dict, init=False)  # `_cures`

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """As in `BuildRun`."""
        found = dict.fromkeys(builds, False)
        for build in builds:
            recipe, log = self.recipes[build.extension].of(build.torch, build.cuda), self.log(build)
            with suppress(BuildfarmError, NotPreparedError):  # the preflight reports an error, with all other problems
                prepared = self.executor.prepare(build, recipe, log=log, cached_only=True)
                found[build] = self._earlier(build, prepared, recipe) is not None
        return found

    def start(self, builds: Mapping[Build, bool]) -> tuple[int, Sequence[Build]]:
        """As in `BuildRun`; raises what `preflight` raises."""
        missing = [build for build, stored in builds.items() if not stored]
        parallel, jobs = preflight(missing, self.recipes, self.executor, self.store, self.jobs)
        self._places = places(builds, parallel, jobs, self.executor)
        return parallel, sorted(builds, key=lambda build: self._places[build].rank)

    def make(self, build: Build, log: Path, stage: Callable[[str], None]) -> tuple[StoredBuild, bool]:
        """The wheel of an earlier run with these tools and this source; else a new one.

        A compile that fails for a cause with a cure begins again. The compiler cache has the objects that were made.
        """
        try:
            while True:
                recipe = self.recipes[build.extension]
                try:
                    return self._make(build, recipe.of(build.torch, build.cuda), log, stage)
                except CompileError as error:
                    if not (self.cures and self._cured(build, recipe, error)):
                        raise
        finally:
            self._places[build].release()  # the builds that wait for this one go on, also if it did not compile

    def _cured(self, build: Build, recipe: Recipe, error: CompileError) -> bool:
        """Whether the recipe of a build is not the one any more with which it failed, because a cure was applied.

        Tells what was changed. If nothing was, the error gets the reasons as hints. Builds of a recipe share its cures.
        """
        from builder.recipes.cures import PATCH, cure  # noqa: PLC0415 - only a build that failed needs it

        with self._curing:
            if self.recipes[build.extension] is not recipe:  # a build beside this one found a cure
                return True
            try:
                cured, treatment = cure(recipe, build, error.causes, self.store)
            except (BuildfarmError, OSError) as problem:
                error.hints = (*error.hints, f"the cures cannot be written: {problem}")
                return False
            self.recipes[build.extension] = cured
            for line in treatment.done:
                print_line(f"{build}: cured: {line}")
            if cured is not recipe:
                return True
            patch = recipe.folder / PATCH
            so_far = [f"the cures so far are in {patch}"] if patch in recipe.patches else []
            error.hints = (*error.hints, *treatment.refused, *so_far)
            return False

    def _make(self, build: Build, recipe: Recipe, log: Path, stage: Callable[[str], None]) -> tuple[StoredBuild, bool]:
        stage("prepare")
        prepared = self.executor.prepare(build, recipe, log=log)
        if stored := self._earlier(build, prepared, recipe):
            return stored, True
        waits = f"{WAITS}another build of {build.extension}, whose objects this build uses"
        self._places[build].wait(partial(stage, waits))
        return self._make_wheel(build, prepared, recipe, log, stage)

    def prove(self, build: Build, stored: StoredBuild, log: Path, stage: Callable[[str], None]) -> list[Proof]:
        """As in `BuildRun`; empty without a prover."""
        if self.prover is None:
            return []
        subject = self.prover.subject(stored, build, self.recipes[build.extension])
        return self.prover.prove(subject, log=log, stage=stage, part=partial(self.progress.part, str(build)))

    def _earlier(self, build: Build, prepared: Prepared, recipe: Recipe) -> StoredBuild | None:
        return self.store.take(build_digest(build, recipe, prepared.toolchain, source_digest(recipe)))

    def _make_wheel(
        self, build: Build, prepared: Prepared, recipe: Recipe, log: Path, stage: Callable[[str], None]
    ) -> tuple[StoredBuild, bool]:
        """Fetch, compile, repair, and add to the store; once, even if several processes share the store; as `make`."""
        # Only a build that compiles needs these.
        from builder.recipes.inspection.native_code import needless_headers, too_many_headers  # noqa: PLC0415
        from builder.wheels.make import compile_wheel, repair_wheel  # noqa: PLC0415

        name, store = str(build), self.store
        own = f"source-{name}-{project_key(recipe.folder)}"  # two processes of a project share the log of a build
        with store.work(own, lambda who: stage(f"{WAITS}{who}, which builds this project too")) as scratch:
            stage("fetch")
            (scratch / "src").mkdir()
            source = prepare_source(recipe, scratch / "src", cache=store.root / "sources")
            # The digest is that of the copy: files may change meanwhile.
            digest = build_digest(build, recipe, prepared.toolchain, source.digest)
            with store.work(work_name(digest), lambda who: stage(f"{WAITS}{who}, which makes the same wheel")) as work:
                if stored := store.take(digest):  # the other process made it
                    return stored, True
                (scratch / "src").rename(work / "src")
                log.write_bytes(b"")
                jobs, owner = self._places[build].jobs, store.owner(work_name(digest))
                job = CompileJob(build, recipe, prepared.toolchain, work, log, jobs, owner)
                self.progress.read_calls(name, job.calls)
                needless = needless_headers(job.source)  # before the compile, which may move the source away
                early = self.prover.environments_ahead(build, recipe, digest) if self.prover else nullcontext()
                with folder_builds.compiling(store, build, recipe, source.files), early:
                    raw = compile_wheel(prepared, job, stage)
                    wheel, record = repair_wheel(raw, source.digest, stage, minor_mismatch=self.minor_mismatch)
                    # Before the store has the wheel: the next run would take it without this proof.
                    proof = self._cures(job, source.digest, stage) if recipe.patches and self.prover else None
                    stored = store.add(digest, wheel, record)
                if proof:
                    store.save_proofs([replace(proof, wheel=stored.sha256)])
                    print_line(f"{build}: cures: {proof.verdict}: {proof.reason}")
                if needless and record.seconds >= _SLOW:
                    why = f"the build took {record.seconds:.0f} s: {too_many_headers(needless)}"
                    self._warn_once(f"{build.extension}: {why}")
        return stored, False

    def _cures(self, job: CompileJob, source: str, stage: Callable[[str], None]) -> Proof | None:
        """The proof that the cures of a recipe change no GPU code; a source is compared once with each nvcc."""
        from builder.recipes.cured_code import prove_cures  # noqa: PLC0415 - only an old source needs it

        key = (source, job.toolchain.get(Part.NVCC))
        if key not in self._compared:
            self._compared[key] = prove_cures(job, self.store.root / "sources", stage)
        return self._compared[key]
