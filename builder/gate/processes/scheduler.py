"""Starts the fork servers, gives them tasks, enforces limits, and turns the end of every process into outcomes.

Imports neither torch nor the extension, so neither can crash the scheduler.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder.gate import coverage, tasks
from builder.gate.acceptance import Accept, accept, cell_name
from builder.gate.check_table import TASK_CHECKS, Check
from builder.gate.outcome import FAILED, NOT_RUN, Answer, Outcome, Spec
from builder.gate.processes import journal, verdicts
from builder.gate.processes.running_task import RunningTask
from builder.gate.processes.server_pool import RESTARTS, ServerPool
from builder.gate.processes.spawn import (
    ForkServerProcess,
    Process,
    fork_server_command,
    isolated_command,
    plain_environment,
)
from builder.gate.processes.task_queue import TaskQueue
from builder.gate.system import rlimits
from builder.gate.system.exit_status import ProcessExit

#: Seconds that importing torch and the extension may take, from a cold disk.
IMPORT_SECONDS = 180.0
_GRACE = 0.3  # seconds between the signal to write the stack and SIGKILL
_TICK = 0.05  # seconds between two looks at the limits of running tasks

#: The task that looks for GPUs; it runs before the others are planned.
_WHERE = Check("where", "", "", "gpu:where", device="none", per_extension=True)


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
        command: Callable[[Path, int, int, bool], list[str]] = fork_server_command,
    ) -> None:
        self.root, self.spec, self.work_dir = root, spec, work_dir
        self.outcomes: list[Outcome] = []
        self._count = 0
        self._pool = ServerPool(
            lambda commands, events, heap_checks: command(root, commands, events, heap_checks), self._new_task_dir
        )
        self._queue = TaskQueue()
        self._looking_for_gpu = False  # the tasks are planned when this is answered
        self._running: dict[int, RunningTask] = {}
        self._import_orders: Process | None = None
        self._where: dict[str, Any] = {}
        self._ops: list[str] = []
        self._cases: list[tasks.CaseFacts] = []

    def run(self) -> Answer:
        """Run everything and return the answer."""
        try:
            if self._selected("import-order"):
                self._import_orders = self._start_import_orders()
            self._pool.start(heap_checks=False)
            if any(check.heap_checks and self._selected(check.name) for check in TASK_CHECKS):
                self._pool.start(heap_checks=True)
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

    def _selected(self, check: str) -> bool:
        return not self.spec.checks or check in self.spec.checks

    def _new_task_dir(self) -> Path:
        self._count += 1
        task_dir = self.work_dir / str(self._count)
        task_dir.mkdir()
        return task_dir

    def _start_import_orders(self) -> Process:
        task_dir = self._new_task_dir()
        command = isolated_command(self.root, "import_order:import_orders", task_dir)
        return Process(command, task_dir, plain_environment(os.environ))

    # The loop

    def _busy(self) -> bool:
        return bool(self._running or self._queue or self._looking_for_gpu or self._pool.importing())

    def _step(self) -> None:
        for heap_checks, server, events in self._pool.poll(_TICK):
            if events is None:
                self._handle_server_exit(server, heap_checks)
                continue
            for event in events:
                self._receive_event(server, heap_checks, event)
        self._enforce_limits()
        self._start_tasks()
        if self._import_orders and self._import_orders.ended() is not None:
            self.outcomes += verdicts.import_order_outcomes(self._import_orders)
            self._import_orders = None

    def _receive_event(self, server: ForkServerProcess, heap_checks: bool, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "importing":
            server.importing = event["what"]
        elif kind == "where":
            self._where.update(event["where"])
        elif kind == "ready":
            server.facts = event
            if not heap_checks and self._pool.is_first(heap_checks=False):
                self._handle_ready(event)
        elif kind == "started":
            running = self._running[event["id"]]
            running.pid, running.began = event["pid"], time.monotonic()
            running.base = rlimits.resident(server.pid) or 0
        elif kind == "ended":
            self._handle_task_exit(self._running.pop(event["id"]), event["status"])

    def _handle_ready(self, facts: dict[str, Any]) -> None:
        """Store what the plain fork server found, and look for GPUs next."""
        self._ops = facts["ops"]
        self._cases = [tasks.CaseFacts.from_json(one) for one in facts["cases"]]
        # Errors of the imports are reported whatever was selected: with "not run" alone the gate would not fail.
        self.outcomes += verdicts.import_problems(facts)
        if facts["imported"]:
            found = verdicts.imports_found(self.spec, self._ops, self._cases, facts)
            self.outcomes += [one for one in found if self._selected(one.check)]
        if self._selected("edges"):
            self.outcomes += coverage.missing_empty_cases(self._cases)
        if not facts["imported"]:
            self._cancel("the extension cannot be imported")
        else:
            self._looking_for_gpu = True

    def _plan(self, no_gpu: str) -> None:
        planned, outcomes = tasks.plan(self.spec, self._cases, no_gpu)
        self.outcomes += outcomes
        if not self._cases:
            reason = "cases.py has no cases to run" if self.spec.has_cases else coverage.NO_CASES
            self.outcomes += verdicts.not_run(self.spec, reason, per_extension=False)
        self._queue = TaskQueue(planned)
        if self._pool.no_heap_checks:
            self.outcomes += self._queue.drop(heap_checks=True, reason=self._pool.no_heap_checks)

    # Tasks

    def _start_tasks(self) -> None:
        ready = self._pool.ready()
        plain = dict(ready).get(False)
        if self._looking_for_gpu:
            if plain is not None and not self._running:
                self._start_task(plain, tasks.Task(_WHERE, None, "cuda"))
            return
        for heap_checks, server in ready:
            while len(self._running) < self.spec.jobs and not any(one.exclusive for one in self._running.values()):
                task = self._queue.take(heap_checks=heap_checks)
                if task is None:
                    break
                self._start_task(server, task)
        for heap_checks, server in ready:
            task = None if self._running else self._queue.take_exclusive(heap_checks=heap_checks)
            if task is not None:
                self._start_task(server, task, exclusive=True)
        if ready and not self._running and self._queue and not self._pool.importing():
            # No fork server is left that could run these tasks.
            self._drop_all("the process that starts the tasks of this check ended and was not restarted")

    def _start_task(self, server: ForkServerProcess, task: tasks.Task, *, exclusive: bool = False) -> None:
        task_dir = self._new_task_dir()
        self._running[self._count] = RunningTask(task, server, task_dir, time.monotonic(), exclusive=exclusive)
        server.send_command(
            fork=self._count,
            check=task.check.name,
            function=task.check.function,
            case=task.case.number if task.case else None,
            device=task.device,
            # CUDA reserves terabytes of address space, so for CUDA only the memory in use is limited.
            memory=0 if task.device == "cuda" else self.spec.memory,
            task_dir=str(task_dir),
        )

    def _handle_task_exit(self, running: RunningTask, status: int) -> None:
        record = journal.read(running.task_dir / journal.JOURNAL)
        if running.task.check is _WHERE:
            self._where.update(record.facts)
            self._looking_for_gpu = False
            self._plan(verdicts.no_gpu(self._where, record))
            return
        seconds = round(time.monotonic() - running.began, 3)
        self.outcomes += verdicts.task_outcomes(running, status, record, seconds, self.spec)
        self.outcomes += self._queue.done(running.task, running.limit)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for heap_checks, server in self._pool.importing():
            if not server.closed and now - server.started > IMPORT_SECONDS:
                server.kill()
                server.importing += f" (killed after {IMPORT_SECONDS:.0f} s)"
                self._handle_server_exit(server, heap_checks)
        for number, running in self._running.items():
            if running.killed:
                if now - running.killed > _GRACE:
                    running.server.send_command(kill=number, signal=signal.SIGKILL)
                continue
            running.limit = running.exceeded(self.spec, now)
            if running.limit:
                running.server.send_command(kill=number, signal=signal.SIGUSR1)  # faulthandler writes the stack
                running.killed = now

    # Fork servers that end

    def _handle_server_exit(self, server: ForkServerProcess, heap_checks: bool) -> None:
        """A fork server ended: during an import, or because one of its tasks killed it."""
        status = self._pool.wait(server)
        if server.facts is None:
            self._handle_failed_import(server, heap_checks, status)
            return
        self._handle_lost_tasks(server, status)
        if not self._pool.restart(heap_checks=heap_checks):
            reason = f"the process that starts the tasks was killed more than {RESTARTS} times, so it was not restarted"
            self.outcomes += self._queue.drop(heap_checks=heap_checks, reason=reason)
            if not heap_checks and self._looking_for_gpu:
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
            if len(lost) > 1 and not running.exclusive:
                self._queue.retry_exclusively(running.task)
                continue
            reason = "kills its parent process: the op sends a signal to the process that started it"
            self.outcomes.append(running.task.outcome(FAILED, reason, **ProcessExit(status).evidence()))
            self.outcomes += self._queue.done(running.task, "")
            reason = f"not run, because the case killed its parent process in the check {running.task.check.name!r}"
            self.outcomes += self._queue.give_up(running.task, reason)

    def _handle_failed_import(self, server: ForkServerProcess, heap_checks: bool, status: int) -> None:
        reason, end = verdicts.import_failure(server, status)
        if not heap_checks:
            self.outcomes.append(Outcome("ops", "", "", FAILED, reason, evidence=end.evidence()))
            self._cancel(reason)
            return
        reason += " under glibc's heap checks"
        if server.importing != "torch" and self._selected("memory"):
            self.outcomes.append(Outcome("memory", "", "", FAILED, reason, evidence=end.evidence()))
        self._pool.no_heap_checks = reason
        self.outcomes += self._queue.drop(heap_checks=True, reason=reason)

    def _cancel(self, reason: str) -> None:
        """Report every remaining check as not run, because nothing can be executed any more."""
        self.outcomes += verdicts.not_run(self.spec, reason, per_extension=True)
        self._looking_for_gpu = False
        self._drop_all(reason)
        self._pool.stop(heap_checks=True)
        lost = [running.task for running in self._running.values() if running.task.check is not _WHERE]
        self.outcomes += [task.outcome(NOT_RUN, reason) for task in lost]
        self._running.clear()

    def _drop_all(self, reason: str) -> None:
        for heap_checks in (True, False):
            self.outcomes += self._queue.drop(heap_checks=heap_checks, reason=reason)
