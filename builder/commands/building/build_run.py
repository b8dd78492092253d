"""The builds of one run, several at a time, on this machine or on workers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from builder.commands.building.folder_builds import FolderBuilds
from builder.errors import BuildfarmError
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import Interrupted, kill_all
from builder.progress.display import Progress
from builder.proof import Proof, Verdict
from builder.proofs.cells.prover import WheelProver
from builder.result import BuildResult
from builder.storage.runs import last_steps
from builder.store import Store, StoredBuild

#: Seconds between two looks for a signal.
_WAIT_SECONDS = 0.5


class BuildRun(ABC):
    """The builds of one run: `LocalRun` makes them on this machine, `RemoteRun` on workers."""

    def __init__(
        self,
        store: Store,
        recipes: Mapping[str, Recipe],
        prover: WheelProver | None,
        progress: Progress | None = None,
    ) -> None:
        """`prover` proves the wheels; None: they are only built. `progress` shows the builds; None: a new one."""
        self.store = store
        self.recipes = recipes
        self.prover = prover
        self.progress = progress or Progress(last=partial(last_steps, store))
        #: The results so far; after an interrupt, the builds that ended before it.
        self.finished: dict[Build, BuildResult] = {}

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
        with self.progress.shown(), ThreadPoolExecutor(at_once) as pool:
            try:
                futures = {pool.submit(self._build_and_prove, build): build for build in ordered}
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
            finally:
                self.end()
        return [self.finished[build] for build in builds]

    def _build_and_prove(self, build: Build) -> BuildResult:
        """One build from its recipe to its proofs; an error becomes the result, and the other builds go on."""
        name, started, log = str(build), time.monotonic(), self.store.log(str(build))
        stage = partial(self.progress.stage, name)
        stored: StoredBuild | None = None
        reused, error, proofs = False, None, list[Proof]()
        self.progress.start(name, log)
        try:
            stored, reused = self.make(build, log, stage)
            FolderBuilds(self.store).remember(build, self.recipes[build.extension], stored.digest)
            proofs = self.prove(build, stored, log, stage)
        except BuildfarmError as problem:
            error, reused = problem, False
        except Interrupted:
            self.progress.finish(name, "failed: interrupted")
            raise
        failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
        outcome = f"failed: {error or failed[0].check}" if error or failed else ""
        self.progress.finish(name, outcome or ("already built, checked" if reused else "built"))
        seconds = time.monotonic() - started
        return BuildResult(build, stored, error, reused=reused, seconds=seconds, proofs=tuple(proofs), log=log)
