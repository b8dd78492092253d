"""Starts the fork servers, gives them jobs, enforces limits, and turns the end of every process into outcomes.

Imports neither torch nor the extension, so neither can crash the scheduler.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from builder.gate.amounts import counted
from builder.gate.check_table import CHECKS, TASK_CHECKS, GateCheck
from builder.gate.coverage import CaseFacts, no_cases
from builder.gate.outcome import FAILED, NOT_RUN, Accept, Answer, Outcome, Spec, accept, cell_name
from builder.gate.processes import verdicts
from builder.gate.processes.import_order import ImportOrders
from builder.gate.processes.jobs import SEND, Job, Queue, plan
from builder.gate.processes.servers import HEAP_CHECKS, JUDGE, ORDERS, PLAIN, RESTARTS, Server, Servers, start_command
from builder.gate.system import nvidia, rlimits
from builder.gate.system.process_end import ProcessExit

_TICK = 0.05  # seconds to wait for events
_LOOK = 0.2  # seconds between two looks at the limits of running jobs

#: The job that looks for GPUs; it runs before the others are planned.
_WHERE = GateCheck("where", "gpu:where", "none", per_extension=True, time_factor=2.0)


class GateInterrupted(BaseException):
    """A signal asked the gate to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def terminate_as_interrupt() -> None:
    """Raise GateInterrupted on SIGTERM, SIGHUP and SIGINT, so that `finally` blocks end every process."""

    def interrupt(number: int, _frame: object) -> None:
        raise GateInterrupted(number)

    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(one, interrupt)


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
        self._spec, self._work_dir, self._parent = spec, work_dir, parent
        self._outcomes: list[Outcome] = []  # in no order
        self._count = 0
        self._servers = Servers(partial(command, root), self._new_dir)
        self._judge: Mapping[str, Any] = {}  # what the judge knows about cases.py
        self._judge_lost = ""  # why it has ended
        self._said = (0.0, "")  # when the last line was printed, and its text
        self._looked = 0.0  # when the limits were enforced
        self._queue = Queue()
        self._planned = False  # the first job looks for GPUs; its answer decides which others there are
        self._gpu_processes = 1
        self._running: dict[int, Job] = {}
        self._orders: ImportOrders | None = None  # until each has ended
        self._where: dict[str, Any] = {}
        self._ops: list[str] = []
        self._cases: list[CaseFacts] = []

    def run(self) -> Answer:
        """Run everything and return the answer."""
        try:
            rlimits.become_subreaper()
            judge = self._spec.has_cases and any(CHECKS[name].judged for name in self._spec.checks or CHECKS)
            wanted = ((ORDERS, self._selected("import-order")), (JUDGE, judge), (PLAIN, True))
            self._servers.start(*(role for role, needed in wanted if needed))
            if self._spec.has_cases and any(one.heap_checks and self._selected(one.name) for one in TASK_CHECKS):
                self._servers.start(HEAP_CHECKS)
            if not judge:
                self._servers.release()
            while self._running or self._queue or self._servers.importing():
                self._step()
        finally:
            self._servers.close()
        outcomes = verdicts.in_report_order(verdicts.compare_bits(self._outcomes), self._ops)
        entries = [Accept(**entry) for entry in self._spec.accepts]
        return Answer(self._where, self._ops, accept(outcomes, entries, cell_name(self._where)))

    def _selected(self, check: str) -> bool:
        return not self._spec.checks or check in self._spec.checks

    def _new_dir(self) -> Path:
        self._count += 1
        folder = self._work_dir / str(self._count)
        folder.mkdir()
        return folder

    def _step(self) -> None:
        if self._parent and os.getppid() != self._parent:
            raise GateInterrupted(signal.SIGHUP)
        try:
            for server, events in self._servers.poll(_TICK):
                if events is None:
                    self._handle_server_exit(server)
                for event in events or ():
                    self._receive_event(server, event)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self._outcomes.append(Outcome("ops", "", "", FAILED, verdicts.FORGED))
            self._cancel(verdicts.FORGED)
            self._lose_orders(verdicts.FORGED)
            self._servers.close(ORDERS, JUDGE, PLAIN, patience=0)
        if (now := time.monotonic()) - self._looked > _LOOK:
            self._looked = now
            for server in self._servers.open():
                if server.enforce(now):
                    self._handle_server_exit(server)
            for job in self._running.values():
                job.enforce(now)
        self._start_jobs()
        self._say()

    def _receive_event(self, server: Server, event: dict[str, Any]) -> None:
        """Handle an event of a server. Raises LookupError for a forged event."""
        kind = event.pop("event")
        if kind in ("started", "ended"):
            job = self._running[event["id"]]
            if job.server is not server or (kind == "started" and job.pid):
                raise LookupError("this server did not start this job")
            if kind == "started":
                job.started(int(event["pid"]))
                return
            del self._running[job.id]
            job.ended(int(event["status"]))
            self._handle_end(job)
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
                self._servers.release()
            elif server.role == ORDERS:
                self._orders = ImportOrders(self._spec, event["modules"], event["versions"])
            elif server.role == PLAIN and self._servers.starts[PLAIN] == 1:
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
            self._queue = Queue([Job(_WHERE, device="cuda")])

    def _plan(self, no_gpu: str) -> None:
        planned, outcomes = plan(self._spec, self._cases, no_gpu)
        self._outcomes += outcomes
        if not self._cases:
            why = "cases.py has no cases to run" if self._spec.has_cases else no_cases(self._spec.name)
            self._outcomes += verdicts.not_run(self._spec, why, per_extension=False)
        if (self._judge or self._judge_lost) and not self._judge.get("problem"):
            # A case on a GPU, and a cases.py that needs the extension, are judged in the process of the extension.
            for job in planned:
                job.phase = SEND if job.check.judged and job.device == "cpu" else job.phase
        self._queue, self._planned = Queue(planned, self._spec.jobs), True
        if self._servers.no_heap_checks:
            self._report_not_run(self._queue.drop(HEAP_CHECKS), self._servers.no_heap_checks)

    def _report_not_run(self, jobs: Iterable[Job], reason: str) -> None:
        self._outcomes += [
            one.outcome(NOT_RUN, reason) for job in jobs for one in job.each() if job.check is not _WHERE
        ]

    def _start_jobs(self) -> None:
        if self._judge_lost:
            self._outcomes += [one.outcome(FAILED, self._judge_lost) for one in self._queue.drop(JUDGE)]
        for server in self._servers.ready():
            while job := self._next(server.role):
                folder = self._new_dir()
                self._running[self._count] = job
                job.start(self._count, server, folder, self._spec)
        if self._queue and not self._running and not self._servers.importing():
            # No fork server is left that could run these jobs.
            reason = "the process that starts the tasks of this check ended and was not restarted"
            self._report_not_run(self._queue.drop(PLAIN, HEAP_CHECKS, JUDGE), reason)

    def _next(self, role: str) -> Job | None:
        """Remove and return the next job of this fork server, if it may start now. Orders are counted apart."""
        running = [one for one in self._running.values() if (one.role == ORDERS) == (role == ORDERS)]
        if len(running) >= self._spec.jobs or any(one.exclusive for one in running):
            return None
        if role == ORDERS:
            return self._orders.take() if self._orders else None
        gpu = sum(one.device == "cuda" for one in running) < self._gpu_processes
        return self._queue.take(role, gpu=gpu, idle=not running)

    def _say(self) -> None:
        """Print what runs longest, when it changes, at most once a second; `builder.progress` shows the line."""
        if not self._parent or not self._planned or not self._running or time.monotonic() - self._said[0] < 1:
            return
        job = next(iter(self._running.values()))
        text = f"{job.check.name} of {job.op or 'all ops'}; {counted(len(self._queue), 'task')} to start"
        if text != self._said[1]:
            self._said = (time.monotonic(), text)
            print(f"gate: {text}", flush=True)  # noqa: T201

    def _handle_end(self, job: Job) -> None:
        if job.role == ORDERS:
            if self._orders and (found := self._orders.ended(job)):
                self._outcomes += found
                self._orders = None
        elif job.check is _WHERE:
            self._where.update(job.record.facts)
            self._gpu_processes = int(self._where.pop(nvidia.PROCESSES, self._spec.jobs))
            self._plan(verdicts.no_gpu(self._where, job))
        elif len(job.cases) > 1:
            self._divide(job)
        elif phase := verdicts.next_phase(job):
            [again] = job.each()
            again.phase = phase
            self._queue.put_back([again])
        else:
            self._outcomes += verdicts.job_outcomes(job)
            self._outcomes += self._queue.done(job)

    def _divide(self, job: Job) -> None:
        """Keep what a process with several cases has passed, and run the others again."""
        passed, done, again = verdicts.of_several(job)
        self._outcomes += passed
        for one in done:
            self._queue.done(one)
        self._queue.put_back(again)

    def _handle_server_exit(self, server: Server) -> None:
        """A fork server ended: during an import, or because one of its jobs killed it."""
        status = server.close()
        lost = [job for job in self._running.values() if job.server is server]
        if server.role == JUDGE:
            end = ProcessExit(status, log=server.log())
            self._judge_lost = f"the judge, which compares the results, {end.sentence()}"
            if server.facts is None:
                self._servers.release()
            for job in lost:
                del self._running[job.id]
                self._queue.put_back(job.each())  # fails with the others that wait for the judge
        elif server.role == ORDERS and server.facts is not None:
            end = ProcessExit(status, "stopped" if server.stopped else "", log=server.log())
            self._lose_orders(f"the process that tests the import orders {end.sentence()}", **end.evidence())
        elif server.facts is None:
            reason, outcomes = verdicts.import_failure(server, status)
            self._outcomes += [one for one in outcomes if one.check == "ops" or self._selected(one.check)]
            if server.role == PLAIN:
                self._cancel(reason)
            elif server.role == HEAP_CHECKS:
                self._servers.no_heap_checks = reason
                self._report_not_run(self._queue.drop(HEAP_CHECKS), reason)
        else:
            self._handle_lost(lost, status)
            if self._servers.starts[server.role] <= RESTARTS:
                self._servers.start(server.role)
                return
            reason = f"the process that starts the tasks was killed more than {RESTARTS} times, so it was not restarted"
            self._report_not_run(self._queue.drop(server.role), reason)
            if server.role == PLAIN and not self._planned:
                self._cancel(reason)

    def _handle_lost(self, lost: Sequence[Job], status: int) -> None:
        """Fail the job that killed its fork server; if several were running, retry each one exclusively."""
        for job in lost:
            del self._running[job.id]
            if job.pid:
                rlimits.kill_group(job.pid)
            if len(job.cases) > 1:
                job.ended(status)
                self._divide(job)
            elif job.check is _WHERE or (len(lost) > 1 and not job.exclusive):
                [again] = job.each()
                again.exclusive = job.check is not _WHERE
                self._queue.put_back([again])
            else:
                reason = "kills or stops its parent process: the op sends a signal to the process that started it"
                killed = job.outcome(FAILED, reason, **ProcessExit(status).evidence())
                self._outcomes += [killed, *self._queue.done(job)]
                reason = f"not run, because the case killed its parent process in the check {job.check.name!r}"
                self._outcomes += self._queue.give_up(job, reason)

    def _lose_orders(self, reason: str, **evidence: Any) -> None:  # noqa: ANN401
        """Fail the import orders if they have not ended."""
        running = [job.id for job in self._running.values() if job.role == ORDERS]
        if self._orders:
            self._outcomes.append(Outcome("import-order", "", "", FAILED, reason, evidence=evidence))
        self._orders = None
        for one in running:
            del self._running[one]

    def _cancel(self, reason: str) -> None:
        """Report every remaining check as not run, because nothing can be executed any more; orders go on."""
        self._outcomes += verdicts.not_run(self._spec, reason, per_extension=True)
        self._servers.close(HEAP_CHECKS, patience=0)
        running = [job for job in self._running.values() if job.role != ORDERS]
        self._report_not_run([*self._queue.drop(PLAIN, HEAP_CHECKS, JUDGE), *running], reason)
        for job in running:
            del self._running[job.id]
