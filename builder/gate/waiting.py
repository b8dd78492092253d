"""The tasks that wait: which is next, which must wait for another, which are given up. Pure; no process is met here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from builder.gate.outcome import NOT_RUN, Outcome
from builder.gate.tasks import Task

#: Quick ones that go before all others of a case: one that hangs here is not tried again in every other check.
_SCOUTS = ("values", "edges")
#: Where running out of time says nothing of the op itself: the compiler may be the slow one.
_TRACED = ("compile", "export", "opcheck", "gpu-sanitizer")


class Waiting:
    """Tasks to do, in the order given; a case's others are held back until its scout has come back."""

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        listed = list(tasks)
        self._scouts = [task for task in listed if task.check.name in _SCOUTS]
        self._rest = [task for task in listed if task.check.name not in _SCOUTS]
        self._held = {_key(task) for task in self._scouts}
        self._alone: list[Task] = []

    def __bool__(self) -> bool:
        return bool(self._scouts or self._rest or self._alone)

    def take(self, *, guarded: bool) -> Task | None:
        """The next task for this kind of nursery, or None while there is none to start."""
        for queue in (self._scouts, self._rest):
            for task in queue:
                if task.check.guarded == guarded and (queue is self._scouts or _key(task) not in self._held):
                    queue.remove(task)
                    return task
        return None

    def take_alone(self, *, guarded: bool) -> Task | None:
        """A task that must have the machine to itself; asked for when nothing runs and `take` has nothing."""
        for task in self._alone:
            if task.check.guarded == guarded:
                self._alone.remove(task)
                return task
        return None

    def again_alone(self, task: Task) -> None:
        """Try it once more, later and by itself: its nursery died, and it or one beside it is to blame."""
        self._alone.append(task)

    def done(self, task: Task, limit: str) -> list[Outcome]:
        """A task came back, `limit` being what it was killed for: its case's others may go, or are given up."""
        if task.check.name in _SCOUTS:
            self._held.discard(_key(task))
        if limit == "time" and task.check.name not in _TRACED:
            return self.give_up(task, f"not tried: the case does not end in the check {task.check.name!r}")
        return []

    def give_up(self, task: Task, reason: str) -> list[Outcome]:
        """Drop the other tasks of the same case."""
        return self._drop(lambda other: task.case is not None and _key(other) == _key(task), reason)

    def drop(self, *, guarded: bool, reason: str) -> list[Outcome]:
        """Drop every task of one kind of nursery."""
        return self._drop(lambda other: other.check.guarded == guarded, reason)

    def _drop(self, wanted: Callable[[Task], bool], reason: str) -> list[Outcome]:
        dropped = []
        for queue in (self._scouts, self._rest, self._alone):
            for task in [one for one in queue if wanted(one)]:
                queue.remove(task)
                if queue is self._scouts:
                    self._held.discard(_key(task))
                dropped.append(task.outcome(NOT_RUN, reason))
        return dropped


def _key(task: Task) -> int | None:
    return task.case.number if task.case else None
