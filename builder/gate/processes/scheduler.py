"""Starts the fork servers, gives them tasks, enforces limits, and turns the end of every process into outcomes.

Imports neither torch nor the extension, so neither can crash the scheduler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from builder.gate.acceptance import Accept, accept, cell_name
from builder.gate.amounts import counted
from builder.gate.check_table import CHECKS, TASK_CHECKS, GateCheck
from builder.gate.coverage import no_cases
from builder.gate.outcome import FAILED, NOT_RUN, Answer, Outcome, Spec
from builder.gate.processes import verdicts
from builder.gate.processes.server_pool import RESTARTS, ServerPool
from builder.gate.processes.spawn import ForkServerProcess, GateInterrupted, ImportOrderProcess, start_command
from builder.gate.processes.task_process import TaskProcess, enforce
from builder.gate.system import nvidia, rlimits
from builder.gate.system.exit_status import ProcessExit
from builder.gate.tasks import HEAP_CHECKS, JUDGE, PLAIN, SEND, CaseFacts, Task, TaskQueue, plan

_TICK = 0.05  # seconds between two looks at the limits of running tasks

#: The task that looks for GPUs; it runs before the others are planned.
_WHERE = GateCheck("where", "gpu:where", "none", per_extension=True, time_factor=2.0)


class Scheduler:
    """One run of the gate."""

    def __init__(
        self,
        root: Path,
        spec: Spec,
        work_dir: Path,
        command: Callable[[Path, Sequence[Mapping[str, Any]]], list[str]] = start_command,
        parent: int = 0,
    ) -> None:
        """`parent` is the process with which this one ends, or 0."""
        self._root, self._spec, self._work_dir, self._parent = root, spec, work_dir, parent
        self._outcomes: list[Outcome] = []  # in no order
        self._count = 0
        self._pool = ServerPool(partial(command, root), self._new_task_dir)
        self._judge: Mapping[str, Any] = {}  # what the judge knows about cases.py
        self._judge_lost = ""  # why it has ended
        self._said = (0.0, "")  # when the last line was printed, and its text
        self._queue = TaskQueue()
        self._planned = False  # the first task looks for GPUs; its answer decides which others there are
        self._gpu_processes = 1
        self._running: dict[int, TaskProcess] = {}
        self._import_orders: ImportOrderProcess | None = None
        self._launcher: socket.socket | None = None
        self._where: dict[str, Any] = {}
        self._ops: list[str] = []
        self._cases: list[CaseFacts] = []

    def run(self) -> Answer:
        """Run everything and return the answer."""
        try:
            rlimits.become_subreaper()
            judge = self._spec.has_cases and any(CHECKS[name].judged for name in self._spec.checks or CHECKS)
            with contextlib.ExitStack() as stack:
                theirs = None
                if self._selected("import-order"):
                    self._launcher, theirs = socket.socketpair()
                    stack.enter_context(theirs)
                self._pool.start(PLAIN, judge=judge, launcher=theirs)
            if self._spec.has_cases and any(one.heap_checks and self._selected(one.name) for one in TASK_CHECKS):
                self._pool.start(HEAP_CHECKS)
            if not judge:
                self._release()
            while self._running or self._queue or self._pool.importing() or self._import_orders:
                self._step()
        finally:
            self._pool.close()
            if self._import_orders:
                self._import_orders.terminate()
            if self._launcher:
                self._launcher.close()
        outcomes = verdicts.in_report_order(verdicts.compare_bits(self._outcomes), self._ops)
        entries = [Accept(**entry) for entry in self._spec.accepts]
        return Answer(self._where, self._ops, accept(outcomes, entries, cell_name(self._where))[0])

    def _selected(self, check: str) -> bool:
        return not self._spec.checks or check in self._spec.checks

    def _new_task_dir(self) -> Path:
        self._count += 1
        task_dir = self._work_dir / str(self._count)
        task_dir.mkdir()
        return task_dir

    def _release(self) -> None:
        """Let code of the extension run: the judge, if there is one, has read its own files."""
        self._pool.release()
        if self._selected("import-order"):
            self._import_orders = ImportOrderProcess(self._root, self._new_task_dir(), self._launcher)

    def _step(self) -> None:
        if self._parent and os.getppid() != self._parent:
            raise GateInterrupted(signal.SIGHUP)
        try:
            for server, events in self._pool.poll(_TICK):
                if events is None:
                    self._handle_server_exit(server)
                for event in events or ():
                    self._receive_event(server, event)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self._outcomes.append(Outcome("ops", "", "", FAILED, verdicts.FORGED))
            self._cancel(verdicts.FORGED)
            for role in (PLAIN, JUDGE):
                self._pool.stop(role)
        for server in enforce(self._running.values(), self._pool.open()):
            self._handle_server_exit(server)
        self._start_tasks()
        self._say()
        if self._import_orders and self._import_orders.end_if_stopped():
            self._outcomes += verdicts.import_order_outcomes(self._import_orders)
            self._import_orders = None

    def _receive_event(self, server: ForkServerProcess, event: dict[str, Any]) -> None:
        """Handle an event of a server. Raises LookupError for a forged event."""
        kind = event.pop("event")
        if kind in ("started", "ended"):
            running = self._running[event["id"]]
            if running.server is not server or (kind == "started" and running.pid):
                raise LookupError("this server did not start this task")
            if kind == "started":
                running.started(int(event["pid"]))
                return
            running.ended(int(event["status"]))
            self._handle_task_exit(self._running.pop(event["id"]))
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
                self._judge = event
                self._release()
            elif server.role == PLAIN and self._pool.is_first(PLAIN):
                self._handle_ready(event)
        else:
            raise LookupError("there is no such event")

    def _handle_ready(self, facts: dict[str, Any]) -> None:
        """Store what the plain fork server found, and look for GPUs next."""
        self._ops = facts["ops"]
        self._cases = [CaseFacts(**one) for one in facts["cases"]]
        self._outcomes += verdicts.imports_found(self._spec, self._ops, self._cases, facts)
        if different := verdicts.other_cases(self._judge, self._cases):
            self._outcomes.append(Outcome("ops", "", "", FAILED, different))
        if different or not facts["imported"]:
            self._cancel(different or "the extension cannot be imported")
        else:
            self._queue = TaskQueue([Task(_WHERE, None, "cuda")])

    def _plan(self, no_gpu: str) -> None:
        planned, outcomes = plan(self._spec, self._cases, no_gpu)
        self._outcomes += outcomes
        if not self._cases:
            why = "cases.py has no cases to run" if self._spec.has_cases else no_cases(self._spec.name)
            self._outcomes += verdicts.not_run(self._spec, why, per_extension=False)
        if (self._judge or self._judge_lost) and not self._judge.get("problem"):
            # A case on a GPU, and a cases.py that needs the extension, are judged in the process of the extension.
            for task in planned:
                task.phase = SEND if task.check.judged and task.device == "cpu" else task.phase
        self._queue, self._planned = TaskQueue(planned, self._spec.jobs), True
        if self._pool.no_heap_checks:
            self._report_not_run(self._queue.drop(HEAP_CHECKS), self._pool.no_heap_checks)

    def _report_not_run(self, tasks: Iterable[Task], reason: str) -> None:
        self._outcomes += [one.outcome(NOT_RUN, reason) for one in tasks if one.check is not _WHERE]

    def _start_tasks(self) -> None:
        if self._judge_lost:
            self._outcomes += [one.outcome(FAILED, self._judge_lost) for one in self._queue.drop(JUDGE)]
        for server in self._pool.ready():
            while len(self._running) < self._spec.jobs:
                running = [one.task for one in self._running.values()]
                gpu = sum(one.device == "cuda" for one in running) < self._gpu_processes
                exclusive = any(one.exclusive for one in running)
                tasks = [] if exclusive else self._queue.take(server.role, gpu=gpu, idle=not running)
                if not tasks:
                    break
                task_dir = self._new_task_dir()
                self._running[self._count] = TaskProcess(self._spec, self._count, tasks, server, task_dir)
                self._running[self._count].start()
        if self._queue and not self._running and not self._pool.importing():
            # No fork server is left that could run these tasks.
            reason = "the process that starts the tasks of this check ended and was not restarted"
            self._report_not_run(self._queue.drop(PLAIN, HEAP_CHECKS, JUDGE), reason)

    def _say(self) -> None:
        """Print what runs longest, when it changes, at most once a second; `builder.progress` shows the line."""
        if not self._parent or not self._planned or not self._running or time.monotonic() - self._said[0] < 1:
            return
        task = next(iter(self._running.values())).task
        text = f"{task.check.name} of {task.op or 'all ops'}; {counted(len(self._queue), 'task')} to start"
        if text != self._said[1]:
            self._said = (time.monotonic(), text)
            print(f"gate: {text}", flush=True)  # noqa: T201

    def _handle_task_exit(self, ended: TaskProcess) -> None:
        if ended.task.check is _WHERE:
            self._where.update(ended.record.facts)
            self._gpu_processes = int(self._where.pop(nvidia.PROCESSES, self._spec.jobs))
            self._plan(verdicts.no_gpu(self._where, ended))
        elif len(ended.tasks) > 1:
            self._divide(ended)
        elif phase := verdicts.next_phase(ended):
            ended.task.phase = phase
            self._queue.put_back(ended.tasks)
        else:
            self._outcomes += verdicts.task_outcomes(ended)
            self._outcomes += self._queue.done(ended.task, ended.limit)

    def _divide(self, ended: TaskProcess) -> None:
        """Keep what a process with several tasks has passed, and run the others again."""
        passed, again, alone = verdicts.of_several(ended)
        self._outcomes += passed
        for task in ended.tasks:
            task.alone = task in alone
            if task not in again:
                self._queue.done(task)
        self._queue.put_back(again)

    def _handle_server_exit(self, server: ForkServerProcess) -> None:
        """A fork server ended: during an import, or because one of its tasks killed it."""
        status = self._pool.wait(server)
        if server.role == JUDGE:
            end = ProcessExit(status, log=server.log())
            self._judge_lost = f"the judge, which compares the results, {end.sentence()}"
            if server.facts is None:
                self._release()
            for running in self._remove_lost(server):
                self._queue.put_back(running.tasks)  # fails with the others that wait for the judge
        elif server.facts is None:
            reason, outcomes = verdicts.import_failure(server, status)
            self._outcomes += [one for one in outcomes if one.check == "ops" or self._selected(one.check)]
            if server.role == PLAIN:
                self._cancel(reason)
            else:
                self._pool.no_heap_checks = reason
                self._report_not_run(self._queue.drop(HEAP_CHECKS), reason)
        else:
            self._handle_lost_tasks(server, status)
            if self._pool.restart(server.role):
                return
            reason = f"the process that starts the tasks was killed more than {RESTARTS} times, so it was not restarted"
            self._report_not_run(self._queue.drop(server.role), reason)
            if server.role == PLAIN and not self._planned:
                self._cancel(reason)

    def _remove_lost(self, server: ForkServerProcess) -> list[TaskProcess]:
        lost = [running for running in self._running.values() if running.server is server]
        for running in lost:
            del self._running[running.number]
        return lost

    def _handle_lost_tasks(self, server: ForkServerProcess, status: int) -> None:
        """Fail the task that killed its fork server; if several were running, retry each one exclusively."""
        lost = self._remove_lost(server)
        for running in lost:
            if running.pid:
                rlimits.kill_group(running.pid)
            task = running.task
            if len(running.tasks) > 1:
                running.ended(status)
                self._divide(running)
            elif task.check is _WHERE or (len(lost) > 1 and not task.exclusive):
                task.exclusive = task.check is not _WHERE
                self._queue.put_back([task])
            else:
                reason = "kills or stops its parent process: the op sends a signal to the process that started it"
                killed = task.outcome(FAILED, reason, **ProcessExit(status).evidence())
                self._outcomes += [killed, *self._queue.done(task)]
                reason = f"not run, because the case killed its parent process in the check {task.check.name!r}"
                self._outcomes += self._queue.give_up(task, reason)

    def _cancel(self, reason: str) -> None:
        """Report every remaining check as not run, because nothing can be executed any more."""
        self._outcomes += verdicts.not_run(self._spec, reason, per_extension=True)
        self._pool.stop(HEAP_CHECKS)
        running = [task for one in self._running.values() for task in one.tasks]
        self._report_not_run([*self._queue.drop(PLAIN, HEAP_CHECKS, JUDGE), *running], reason)
        self._running.clear()
