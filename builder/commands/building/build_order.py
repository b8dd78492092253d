"""The order of one run's builds: those that can share objects do not start to compile at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from builder.matrix.plan import Build
from builder.process import raise_if_interrupted


@dataclass(frozen=True)
class Parallelism:
    """How many builds run in parallel, and how many compilers each of them may start."""

    builds: int = 1
    jobs: int = 1


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

    def release(self, build: Build) -> None:
        """Let the builds that wait for this one start: it compiled, failed, or was in the store."""
        if build in self._first:
            self._compiled[_group(build)].set()

    @contextmanager
    def compiling(
        self, build: Build, parallelism: Parallelism, on_wait: Callable[[], object] = lambda: None
    ) -> Iterator[int]:
        """Wait until the first build of the group is released, after a call of `on_wait`; on exit release this build.

        Yields how many compilers the build may start. With a single group, its first build also gets the compilers of
        the builds that wait for it. With two groups it does not: builds that wait for the other group's first build
        could start while it still uses their compilers.

        Raises Interrupted when the run is interrupted while it waits.
        """
        compiled, jobs = self._compiled.get(_group(build)), parallelism.jobs
        if compiled is not None and build not in self._first and not compiled.is_set():
            on_wait()
            while not compiled.wait(0.2):
                raise_if_interrupted()
        try:
            yield max(jobs, parallelism.builds * jobs) if self._first == {build} else jobs
        finally:
            self.release(build)


def _group(build: Build) -> tuple[str, ...]:
    """What builds that can share objects have in common: the source and the CUDA compiler."""
    return (build.extension, build.version, str(build.cuda))
