"""How many tasks a client gives to Dask at the same time.

Dask sends each task with resources to a worker at once, and looks at all those that wait there again and again to
balance the workers: the time of a look grows with the tasks times the workers. So a client submits AHEAD times as many
tasks as the workers can run, and the next one when one ends.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from builder.commands.distributed.protocol import BUILDS, PROOFS

#: Tasks that are submitted for each one that can run. Of 1, 1.5, 4 and any number, 4 had the shortest makespan:
#: `python -m tests.benchmarks.distributed_scale`. Dask sends some tasks to a worker that is busy, and moves them later.
AHEAD = 4


@dataclass(frozen=True)
class Need:
    """What a task needs of a worker."""

    #: Dask resources, the amount of each.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: The task with the highest starts first.
    priority: float = 0
    #: What to say of a worker that offers too little of a resource, by the resource's name.
    reasons: Mapping[str, str] = field(default_factory=dict)
    #: Whether to wait for a worker that can run the task, if there is none now.
    waits: bool = True


@dataclass
class _Line:
    """The tasks that need the same resources."""

    #: How many may be submitted at the same time; 0: any number.
    limit: int = 0
    #: How many are.
    submitted: int = 0
    #: The others, the highest priority first.
    waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)

    def admit(self) -> None:
        """Let waiting tasks be submitted, as far as the limit allows."""
        while self.waiting and (not self.limit or self.submitted < self.limit):
            _, _, turn = heapq.heappop(self.waiting)
            if not turn.done():  # not given up
                turn.set_result(None)
                self.submitted += 1


class Window:
    """Admits tasks by priority, so many of each kind of need as the workers can run, times AHEAD."""

    def __init__(self) -> None:
        self._lines: dict[frozenset[str], _Line] = {}
        self._workers: Mapping[str, Mapping[str, Any]] = {}
        self._number = count()

    def look(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the workers that there are now, by address; each has its `resources`."""
        self._workers = workers
        for names, line in self._lines.items():
            line.limit = self._limit(names)
            line.admit()

    @asynccontextmanager
    async def place(self, need: Need) -> AsyncIterator[None]:
        """Wait until a task may be submitted; it ends with the block. A task that no worker can run may be at once."""
        names = frozenset(need.resources)
        line = self._lines.get(names)
        if line is None:
            line = self._lines[names] = _Line(self._limit(names))
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(line.waiting, (-need.priority, next(self._number), turn))
        line.admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                line.submitted -= 1
            line.admit()

    def _limit(self, names: frozenset[str]) -> int:
        """How many tasks with these resources may be submitted: by the builds or proofs of the workers that can.

        Tasks that wait and need more resources, such as Docker, keep their places on the workers that have these, if
        there are other places.
        """
        special = [other for other, line in self._lines.items() if names < other and line.waiting]
        able = [worker["resources"] for worker in self._workers.values() if _has(worker["resources"], names)]
        kinds = names & {BUILDS, PROOFS}
        places = sum(offer.get(kind, 0) for offer in able for kind in kinds)
        free = sum(max(0, offer.get(kind, 0) - _kept(offer, special, names)) for offer in able for kind in kinds)
        return AHEAD * int(free or places)


def _has(offer: Mapping[str, float], names: frozenset[str]) -> bool:
    return all(offer.get(name) for name in names)


def _kept(offer: Mapping[str, float], special: Sequence[frozenset[str]], names: frozenset[str]) -> float:
    """How many of the special tasks a worker can run at the same time, by what they need more than `names`."""
    return sum(min(offer[name] for name in other - names) for other in special if _has(offer, other))
