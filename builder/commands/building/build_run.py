"""The builds of one run on this machine, several at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Protocol

from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.building.preflight import BuildOrder, preflight
from builder.commands.building.story import Farm, build_and_prove
from builder.errors import BuildfarmError
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import kill_all
from builder.progress.display import Progress, Timeline
from builder.proofs.cells.prover import WheelProver
from builder.result import BuildResult
from builder.storage.runs import last_steps
from builder.store import Store
from builder.wheels.job import Executor, NotPreparedError
from builder.wheels.sources.prepare import source_entries

#: Seconds between two looks for a signal.
_WAIT_SECONDS = 0.5


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
        progress = progress or Progress(last=partial(last_steps, store))
        self._farm = Farm(store, executor, prover, recipes, progress, minor_mismatch)
        self._jobs = jobs
        self.finished = {}

    def stored(self, builds: Sequence[Build]) -> dict[Build, bool]:
        """Each build, and whether the store has it, as far as this is known without an environment or an image."""
        farm, found = self._farm, dict.fromkeys(builds, False)
        for build in builds:
            recipe, log = farm.recipes[build.extension], farm.store.log(str(build))
            with suppress(BuildfarmError, NotPreparedError):  # the preflight reports an error, with all other problems
                prepared = farm.executor.prepare(build, recipe, log=log, cached_only=True)
                found[build] = farm.stored(build, prepared) is not None
        return found

    def why(self, build: Build) -> str:
        """Why a build that the store lacks is compiled again; empty for the first time."""
        recipe = self._farm.recipes[build.extension]
        return FolderBuilds(self._farm.store).why(build, recipe, source_entries(recipe))

    def build_all(self, builds: Mapping[Build, bool]) -> list[BuildResult]:
        """Build and prove each build once; the results have the order of `builds`, the value of `stored`.

        Raises what `preflight` raises, before anything starts. A build that fails is a result with its error.
        """
        farm, missing = self._farm, [build for build, stored in builds.items() if not stored]
        farm.parallelism = preflight(missing, farm.recipes, farm.executor, farm.store, self._jobs)
        farm.order = BuildOrder(missing if farm.executor.shares_objects else ())
        workers = ThreadPoolExecutor(farm.parallelism.builds)
        with farm.progress.shown(), workers as pool:
            try:
                futures = {}
                for build in farm.order.ordered(builds):
                    future = pool.submit(build_and_prove, farm, build)
                    # The builds that wait for this one go on, also if it failed or did not have to compile.
                    future.add_done_callback(lambda _, build=build: farm.order.release(build))  # type: ignore[misc]
                    futures[future] = build
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
        return self._farm.progress.timeline()
