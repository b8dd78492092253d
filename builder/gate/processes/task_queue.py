"""The tasks that have not started: their order, which ones wait for another task, which ones are dropped. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from builder.gate.outcome import NOT_RUN, Outcome
from builder.gate.tasks import Task

#: Quick checks that run before the others of a case: a case that hangs in one is not tried in the others.
_FIRST = ("values", "edges")
#: Checks in which a time-out does not mean that the op hangs: the compiler or sanitizer may be slow.
_SLOW_TOOLS = ("compile", "export", "opcheck", "gpu-sanitizer")


class TaskQueue:
    """The waiting tasks in the given order; a case's other tasks wait until its first one has ended."""

    def __init__(self, tasks: Iterable[Task] = (), jobs: int = 1) -> None:
        """`jobs` is how many processes run at the same time."""
        planned = list(tasks)
        self._first = [task for task in planned if task.check.name in _FIRST]
        self._rest = [task for task in planned if task.check.name not in _FIRST]
        self._held = {_key(task) for task in self._first}
        self._exclusive: list[Task] = []
        self._alone: set[tuple[str, int | None]] = set()
        self._share = -(-sum(map(self._together, planned)) // jobs)

    def __bool__(self) -> bool:
        return bool(self._first or self._rest or self._exclusive)

    @property
    def sends_more(self) -> bool:
        """Whether tasks of the checks that the judge decides wait."""
        return bool(self._first)

    def take(self, *, heap_checks: bool) -> Task | None:
        """Remove and return the next task for this fork server, or None if none can start now."""
        for queue in (self._first, self._rest):
            for task in queue:
                if task.check.heap_checks == heap_checks and (queue is self._first or _key(task) not in self._held):
                    queue.remove(task)
                    return task
        return None

    def take_others(self, task: Task) -> tuple[Task, ...]:
        """Remove and return further tasks for the process of this one, which `take` has returned.

        A process has at most its share of all tasks that can run together, so that each job has work.
        """
        if not self._together(task):
            return ()
        others: list[Task] = []
        rest: list[Task] = []
        for one in self._rest:
            same = one.check is task.check and one.device == task.device and _key(one) not in self._held
            taken = same and len(others) < self._share - 1 and self._together(one)
            (others if taken else rest).append(one)
        self._rest = rest
        return tuple(others)

    def _together(self, task: Task) -> bool:
        whole = task.check.together and task.case is not None and not task.case.side_effects
        return whole and (task.check.name, _key(task)) not in self._alone

    def put_back(self, tasks: Sequence[Task], alone: Sequence[Task]) -> None:
        """Run tasks next that shared a process before; those in `alone` each get their own process."""
        self._alone.update((task.check.name, _key(task)) for task in alone)
        self._rest[:0] = tasks

    def take_exclusive(self, *, heap_checks: bool) -> Task | None:
        """Remove and return a task that must run alone. Call it when nothing runs and `take` returns None."""
        for task in self._exclusive:
            if task.check.heap_checks == heap_checks:
                self._exclusive.remove(task)
                return task
        return None

    def retry_exclusively(self, task: Task) -> None:
        """Run a task again, alone: its fork server died while several tasks were running."""
        self._exclusive.append(task)

    def done(self, task: Task, limit: str) -> list[Outcome]:
        """Release the tasks that wait for this one, or drop them if it exceeded its time; return the dropped ones.

        `limit` is the limit the task was killed for, or "".
        """
        if task.check.name in _FIRST:
            self._held.discard(_key(task))
        if limit == "time" and task.check.name not in _SLOW_TOOLS:
            return self.give_up(
                task, f"not run, because the case exceeded the time limit in the check {task.check.name!r}"
            )
        return []

    def give_up(self, task: Task, reason: str) -> list[Outcome]:
        """Drop the other tasks of the same case; return them as "not run"."""
        return self._drop(lambda other: task.case is not None and _key(other) == _key(task), reason)

    def drop(self, *, heap_checks: bool, reason: str) -> list[Outcome]:
        """Drop every task for one fork server; return them as "not run"."""
        return self._drop(lambda other: other.check.heap_checks == heap_checks, reason)

    def _drop(self, matches: Callable[[Task], bool], reason: str) -> list[Outcome]:
        dropped = []
        for queue in (self._first, self._rest, self._exclusive):
            for task in [one for one in queue if matches(one)]:
                queue.remove(task)
                if queue is self._first:
                    self._held.discard(_key(task))
                dropped.append(task.outcome(NOT_RUN, reason))
        return dropped


def _key(task: Task) -> int | None:
    return task.case.number if task.case else None
