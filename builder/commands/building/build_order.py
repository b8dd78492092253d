"""The order of one run's builds: those that can share objects do not start to compile at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from builder.matrix.plan import Build
from builder.process import raise_if_interrupted


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
