"""Starts the fork servers, gives them tasks, enforces limits, and turns the end of every process into outcomes.

Imports neither torch nor the extension, so neither can crash the scheduler.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from builder.gate import tasks
from builder.gate.acceptance import Accept, accept, cell_name
from builder.gate.amounts import counted
from builder.gate.check_table import TASK_CHECKS, GateCheck
from builder.gate.outcome import FAILED, NOT_RUN, Answer, Outcome, Spec
from builder.gate.processes import journal, verdicts
from builder.gate.processes.judging import Judging
from builder.gate.processes.running_task import RunningTask, enforce, start
from builder.gate.processes.server_pool import RESTARTS, ServerPool
from builder.gate.processes.spawn import (
    HEAP_CHECKS,
    JUDGE,
    PLAIN,
    ForkServerProcess,
    ImportOrderProcess,
    interrupt_without,
    start_command,
)
from builder.gate.system import nvidia, rlimits
from builder.gate.tasks import Task

# The tasks that have not started: their order, which ones wait for another task, which ones are dropped.

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

    def __len__(self) -> int:
        return len(self._first) + len(self._rest) + len(self._exclusive)

    @property
    def sends_more(self) -> bool:
        """Whether tasks of the checks that the judge decides wait."""
        return bool(self._first)

    def take(self, *, heap_checks: bool, gpu: bool = True) -> Task | None:
        """Remove and return the next task for this fork server, or None if none can start now; `gpu` allows the GPU."""
        for queue in (self._first, self._rest):
            for task in queue:
                if task.device == "cuda" and not gpu:
                    continue
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


_TICK = 0.05  # seconds between two looks at the limits of running tasks

#: The task that looks for GPUs; it runs before the others are planned.
_WHERE = GateCheck("where", "", "gpu:where", device="none", per_extension=True, time_factor=2.0)


class Scheduler:
    """One run of the gate.

    Attributes:
        outcomes: the outcomes so far, in no order.

    """

    def __init__(
        self,
        root: Path,
        spec: Spec,
        work_dir: Path,
        command: Callable[[Path, Sequence[Mapping[str, Any]]], list[str]] = start_command,
        parent: int = 0,
    ) -> None:
        """`parent` is the process with which this one ends, or 0."""
        self.root, self.spec, self.work_dir = root, spec, work_dir
        self.outcomes: list[Outcome] = []
        self._count = 0
        self._pool = ServerPool(partial(command, root), self._new_task_dir)
        self._judging = Judging(self._pool)
        self._parent = parent
        self._said = (0.0, "")  # when the last line was printed, and its text
        self._queue = TaskQueue()
        self._looking_for_gpu = False  # the tasks are planned when this is answered
        self._gpu_processes = 1
        self._running: dict[int, RunningTask] = {}
        self._import_orders: ImportOrderProcess | None = None
        self._launcher: socket.socket | None = None
        self._where: dict[str, Any] = {}
        self._ops: list[str] = []
        self._cases: list[tasks.CaseFacts] = []

    def run(self) -> Answer:
        """Run everything and return the answer."""
        try:
            rlimits.become_subreaper()
            judge = self._judging.wanted(self.spec)
            with contextlib.ExitStack() as stack:
                theirs = None
                if self._selected("import-order"):
                    self._launcher, theirs = socket.socketpair()
                    stack.enter_context(theirs)
                self._pool.start(PLAIN, judge=judge, launcher=theirs)
            if self.spec.has_cases and any(one.heap_checks and self._selected(one.name) for one in TASK_CHECKS):
                self._pool.start(HEAP_CHECKS)
            if not judge:
                self._release()
            while self._busy() or self._import_orders:
                self._step()
        finally:
            self.close()
        outcomes = verdicts.in_report_order(verdicts.compare_bits(self.outcomes), self._ops)
        entries = [Accept(**entry) for entry in self.spec.accepts]
        return Answer(self._where, self._ops, accept(outcomes, entries, cell_name(self._where))[0])

    def close(self) -> None:
        """End every process."""
        self._pool.close()
        if self._import_orders:
            self._import_orders.terminate()
        if self._launcher:
            self._launcher.close()

    def _selected(self, check: str) -> bool:
        return not self.spec.checks or check in self.spec.checks

    def _new_task_dir(self) -> Path:
        self._count += 1
        task_dir = self.work_dir / str(self._count)
        task_dir.mkdir()
        return task_dir

    def _release(self) -> None:
        """Let code of the extension run: the judge, if there is one, has read its own files."""
        self._pool.release()
        if self._selected("import-order"):
            self._import_orders = ImportOrderProcess(self.root, self._new_task_dir(), self._launcher)

    def _busy(self) -> bool:
        importing = self._pool.importing()
        return bool(self._running or self._queue or self._judging.next or self._looking_for_gpu or importing)

    def _step(self) -> None:
        interrupt_without(self._parent)
        try:
            self._receive_events()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self.outcomes.append(Outcome("ops", "", "", FAILED, verdicts.FORGED))
            self._cancel(verdicts.FORGED)
            for role in (PLAIN, JUDGE):
                self._pool.stop(role)
        for server in enforce(self.spec, self._running, self._pool.open()):
            self._handle_server_exit(server)
        self._start_tasks()
        self._say()
        if self._import_orders and self._import_orders.end_if_stopped():
            self.outcomes += verdicts.import_order_outcomes(self._import_orders)
            self._import_orders = None

    def _receive_events(self) -> None:
        for server, events in self._pool.poll(_TICK):
            if events is None:
                self._handle_server_exit(server)
            for event in events or ():
                self._receive_event(server, event)

    def _receive_event(self, server: ForkServerProcess, event: dict[str, Any]) -> None:
        """Handle an event of a server. Raises LookupError for a forged event."""
        kind = event.pop("event")
        if kind in ("started", "ended"):
            running = self._running[event["id"]]
            if running.server is not server or (kind == "started" and running.pid):
                raise LookupError("this server did not start this task")
            if kind == "ended":
                self._handle_task_exit(self._running.pop(event["id"]), int(event["status"]))
                return
            running.started(int(event["pid"]))
        elif server.facts is not None:
            raise LookupError("this server has imported everything")
        elif kind == "forked":
            server.adopt(int(event["pid"]))
        elif kind == "importing":
            server.importing = str(event["what"])
        elif kind == "where":
            self._where.update(event["where"])
        elif kind == "ready":
            server.facts = event
            if server.role == JUDGE:
                self._judging.ready(event)
                self._release()
            elif server.role == PLAIN and self._pool.is_first(PLAIN):
                self._handle_ready(event)
        else:
            raise LookupError("there is no such event")

    def _handle_ready(self, facts: dict[str, Any]) -> None:
        """Store what the plain fork server found, and look for GPUs next."""
        self._ops = facts["ops"]
        self._cases = [tasks.CaseFacts(**one) for one in facts["cases"]]
        self.outcomes += verdicts.imports_found(self.spec, self._ops, self._cases, facts)
        if different := self._judging.other_cases(self._cases):
            self.outcomes.append(Outcome("ops", "", "", FAILED, different))
        if different or not facts["imported"]:
            self._cancel(different or "the extension cannot be imported")
        else:
            self._looking_for_gpu = True

    def _plan(self, no_gpu: str) -> None:
        planned, outcomes = tasks.plan(self.spec, self._cases, no_gpu)
        self.outcomes += outcomes if self._cases else [*outcomes, *verdicts.no_cases(self.spec)]
        self._queue = TaskQueue(planned, self.spec.jobs)
        if self._pool.no_heap_checks:
            self.outcomes += self._queue.drop(heap_checks=True, reason=self._pool.no_heap_checks)

    # Tasks

    def _start_tasks(self) -> None:
        ready = self._pool.ready()
        if self._looking_for_gpu:
            if PLAIN in ready and not self._running:
                self._start_step(ready[PLAIN], tasks.Step(tasks.Task(_WHERE, None, "cuda")))
            return
        self._start_next_steps(more=self._queue.sends_more and PLAIN in ready)
        ready.pop(JUDGE, None)
        for role, server in ready.items():
            while len(self._running) < self.spec.jobs and not any(one.exclusive for one in self._running.values()):
                on_gpu = sum(one.task.device == "cuda" for one in self._running.values())
                task = self._queue.take(heap_checks=role == HEAP_CHECKS, gpu=on_gpu < self._gpu_processes)
                if task is None:
                    break
                step = self._judging.first_step(task)
                others = tuple(tasks.Step(other) for other in self._queue.take_others(task))
                self._start_step(server, replace(step, others=others))
        for role, server in ready.items():
            task = None if self._running else self._queue.take_exclusive(heap_checks=role == HEAP_CHECKS)
            if task is not None:
                self._start_step(server, self._judging.first_step(task), exclusive=True)
        if ready and not self._running and self._queue and not self._pool.importing():
            # No fork server is left that could run these tasks.
            self._drop_all("the process that starts the tasks of this check ended and was not restarted")

    def _start_next_steps(self, *, more: bool) -> None:
        """Start what follows steps that have ended; `more` is whether further results will arrive for the judge."""
        for task in self._judging.take_lost():
            self.outcomes += [task.outcome(FAILED, self._judging.lost), *self._queue.done(task, "")]
        while len(self._running) < self.spec.jobs and (found := self._judging.take(wait=more)):
            self._start_step(*found)

    def _start_step(self, server: ForkServerProcess, step: tasks.Step, *, exclusive: bool = False) -> None:
        folder = self._new_task_dir()
        self._running[self._count] = start(self._count, step, server, folder, self.spec, exclusive=exclusive)

    def _say(self) -> None:
        """Print what runs longest, when it changes, at most once a second; `builder.progress` shows the line."""
        if not self._parent or self._looking_for_gpu or not self._running or time.monotonic() - self._said[0] < 1:
            return
        task = next(iter(self._running.values())).task
        text = f"{task.check.name} of {task.op or 'all ops'}; {counted(len(self._queue), 'task')} to start"
        if text != self._said[1]:
            self._said = (time.monotonic(), text)
            print(f"gate: {text}", flush=True)  # noqa: T201

    def _handle_task_exit(self, running: RunningTask, status: int) -> None:
        record = running.record()
        if running.task.check is _WHERE:
            self._where.update(record.facts)
            self._looking_for_gpu = False
            self._gpu_processes = int(self._where.pop(nvidia.PROCESSES, self.spec.jobs))
            self._plan(verdicts.no_gpu(self._where, running, status, record, self.spec))
            return
        if running.step.others:
            self._divide(running, status, record)
            return
        if step := self._judging.after(running, status, record):
            self._judging.next.append(step)
            return
        seconds = round(time.monotonic() - running.began, 3)
        self.outcomes += verdicts.task_outcomes(running, status, record, seconds, self.spec)
        self.outcomes += self._queue.done(running.task, running.limit)

    def _divide(self, running: RunningTask, status: int, record: journal.TaskRecord) -> None:
        """Keep what a process with several tasks has passed, and run the others again."""
        passed, again, alone = verdicts.of_several(running, status, record)
        self.outcomes += passed
        for task in running.step.tasks:
            if task not in again:
                self._queue.done(task, "")
        if running.step.phase == tasks.JUDGE:
            self._judging.put_back(running.step, again, alone)
        else:
            self._queue.put_back(again, alone)

    # Fork servers that end

    def _handle_server_exit(self, server: ForkServerProcess) -> None:
        """A fork server ended: during an import, or because one of its tasks killed it."""
        if server.role == JUDGE:
            self._handle_judge_exit(server)
            return
        status, heap_checks = self._pool.wait(server), server.role == HEAP_CHECKS
        if server.facts is None:
            self._handle_failed_import(server, status)
            return
        self._handle_lost_tasks(server, status)
        if not self._pool.restart(server.role):
            reason = f"the process that starts the tasks was killed more than {RESTARTS} times, so it was not restarted"
            self.outcomes += self._queue.drop(heap_checks=heap_checks, reason=reason)
            if not heap_checks and (self._looking_for_gpu or self._judging.next):
                self._cancel(reason)

    def _handle_lost_tasks(self, server: ForkServerProcess, status: int) -> None:
        """Fail the task that killed its fork server; if several were running, retry each one exclusively."""
        lost = [number for number, running in self._running.items() if running.server is server]
        for number in lost:
            running = self._running.pop(number)
            if running.pid:
                rlimits.kill_group(running.pid)
            if running.task.check is _WHERE:
                continue  # the restarted server runs this task again
            if running.step.others:
                self._divide(running, status, running.record())
                continue
            if len(lost) > 1 and not running.exclusive:
                self._queue.retry_exclusively(running.task)
                continue
            self.outcomes += [verdicts.killed_parent(running, status), *self._queue.done(running.task, "")]
            reason = f"not run, because the case killed its parent process in the check {running.task.check.name!r}"
            self.outcomes += self._queue.give_up(running.task, reason)

    def _handle_judge_exit(self, server: ForkServerProcess) -> None:
        """The judge ended: an op has killed it, or it cannot import torch."""
        if self._judging.lose(server):
            self._release()
        for number in [number for number, running in self._running.items() if running.server is server]:
            self._judging.next.append(self._running.pop(number).step)  # is reported with the others

    def _handle_failed_import(self, server: ForkServerProcess, status: int) -> None:
        reason, outcomes = verdicts.import_failure(server, status)
        self.outcomes += [one for one in outcomes if one.check == "ops" or self._selected(one.check)]
        if server.role == PLAIN:
            self._cancel(reason)
            return
        self._pool.no_heap_checks = reason
        self.outcomes += self._queue.drop(heap_checks=True, reason=reason)

    def _cancel(self, reason: str) -> None:
        """Report every remaining check as not run, because nothing can be executed any more."""
        self.outcomes += verdicts.not_run(self.spec, reason, per_extension=True)
        self._looking_for_gpu = False
        self._drop_all(reason)
        self.outcomes += [step.task.outcome(NOT_RUN, reason) for step in self._judging.next]
        self._judging.next.clear()
        self._pool.stop(HEAP_CHECKS)
        running = [task for one in self._running.values() for task in one.step.tasks]
        lost = [task for task in running if task.check is not _WHERE]
        self.outcomes += [task.outcome(NOT_RUN, reason) for task in lost]
        self._running.clear()

    def _drop_all(self, reason: str) -> None:
        for one in (True, False):
            self.outcomes += self._queue.drop(heap_checks=one, reason=reason)
