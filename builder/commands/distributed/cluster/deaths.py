"""Which tasks end the worker that runs them.

Dask blames a death on every task that was assigned to the worker, also on those that only waited there. Here a death
counts for the tasks that had started and not ended. When it could be one of several, the task runs again with no other
beside it.
"""

from __future__ import annotations

from collections import defaultdict

#: How often a worker may end while it runs a task.
DEATHS = 3


class Deaths:
    """How often workers ended while they ran each task: a run of a task that has no end counts as a death."""

    def __init__(self) -> None:
        self._open: defaultdict[str, set[str]] = defaultdict(set)  # by the key of a task: runs without an end

    def started(self, key: str, run: str) -> int:
        """Note that a worker starts to run a task; return how often workers ended while they ran it before."""
        self._open[key].add(run)
        return len(self._open[key]) - 1

    def ended(self, key: str, run: str) -> None:
        """Note that a worker ran a task to its end, or was told to stop it."""
        self._open[key].discard(run)

    def of(self, key: str) -> int:
        """How often workers ended while they ran a task; it does not run now."""
        return len(self._open[key])

    def clear(self) -> None:
        """Forget every run, because the scheduler ended and workers stopped their tasks."""
        self._open.clear()
