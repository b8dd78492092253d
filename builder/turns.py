"""Who goes first among builds that can share objects, so that the others find compiled what they have in common."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from builder.matrix.plan import Build
from builder.process import stop_if_ending


class Turns:
    """The order of one run's builds.

    Started at once, builds of one extension would each compile the kernels that are the same for all of them.
    """

    def __init__(self, builds: Sequence[Build]) -> None:
        """`builds` are those that will be compiled."""
        self._families: dict[tuple[str, ...], threading.Event] = {}
        self._firsts: set[Build] = set()
        for build in builds:
            if _family(build) not in self._families:
                self._families[_family(build)] = threading.Event()
                self._firsts.add(build)

    def ordered(self, builds: Sequence[Build]) -> list[Build]:
        """The same builds, those that others wait for in front."""
        return sorted(builds, key=lambda build: build not in self._firsts)

    def jobs(self, build: Build, *, builds: int, jobs: int) -> int:
        """How many compilers a build may start where `builds` run at once with `jobs` each: a first one has more.

        While it compiles, those that wait for it leave their share unused. Beside a second family it has no more:
        those that wait for the other would start while it still held their share.
        """
        return max(jobs, builds * jobs) if self._firsts == {build} else jobs

    def release(self, build: Build) -> None:
        """Let those that wait for this build go: it compiled, failed, or had nothing to compile."""
        if build in self._firsts:
            self._families[_family(build)].set()

    @contextmanager
    def turn(self, build: Build) -> Iterator[None]:
        """Wait until the first of the family has compiled, well or not; raises Interrupted when the farm ends."""
        compiled = self._families.get(_family(build))
        if compiled is None or build in self._firsts:
            try:
                yield
            finally:
                self.release(build)
            return
        while not compiled.wait(0.2):
            stop_if_ending()
        yield


def _family(build: Build) -> tuple[str, ...]:
    """What builds have in common that share kernels: the source and the compiler."""
    return (build.extension, build.version, str(build.cuda))
