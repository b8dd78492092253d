"""Runs every task: starts nurseries, hands out tasks, holds limits, turns each end into outcomes.

Imports neither torch nor the extension, so nothing they do can end it.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder.gate import coverage, crash, journal, limits, tasks, verdicts
from builder.gate.ends import End
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Answer, Outcome, Spec
from builder.gate.processes import (
    NurseryProcess,
    Process,
    alone_command,
    guarded_environment,
    nursery_command,
    plain_environment,
)
from builder.gate.running import Running
from builder.gate.waiting import Waiting

#: The longest an import of torch and the extension may take, cold disk included.
IMPORT_SECONDS = 180.0
#: How often a nursery that was killed by one of its children is started anew.
RESTARTS = 6
_GRACE = 0.3  # seconds to write the stack before SIGKILL
_TICK = 0.05  # seconds between looks at memory and time while something runs

_WHERE = tasks.Check("where", "gpu:where", device="none", whole=True)


class Conductor:
    """One run of the gate.

    Attributes:
        outcomes: what was found so far, in no order.

    """

    def __init__(
        self,
        root: Path,
        spec: Spec,
        room: Path,
        command: Callable[[Path, int, int, bool], list[str]] = nursery_command,
    ) -> None:
        self.root, self.spec, self.room = root, spec, room
        self.outcomes: list[Outcome] = []
        self._command = command
        self._nurseries: dict[bool, NurseryProcess] = {}  # guarded or not
        self._waiting = Waiting()
        self._asking = False  # for the GPU, before there is a plan
        self._running: dict[int, Running] = {}
        self._starts = {False: 0, True: 0}
        self._orders: Process | None = None
        self._unguarded = ""  # why there are no heap checks
        self._where: dict[str, Any] = {}
        self._ops: list[str] = []
        self._cases: list[tasks.CaseFacts] = []
        self._count = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> Answer:
        """Everything, from the first import to the answer."""
        try:
            if self._wanted("import-order"):
                self._orders = self._start_orders()
            self._start(guarded=False)
            if any(check.guarded and self._wanted(check.name) for check in tasks.TABLE):
                self._start(guarded=True)
            while self._at_work() or self._orders:
                self._turn()
        finally:
            self.close()
        return Answer(self._where, self._ops, verdicts.ordered(verdicts.joined(self.outcomes), self._ops))

    def close(self) -> None:
        """End every process; nothing is left."""
        for nursery in self._nurseries.values():
            nursery.close()
        if self._orders:
            self._orders.terminate()
        self._selector.close()

    def _wanted(self, check: str) -> bool:
        return not self.spec.checks or check in self.spec.checks

    def _new_room(self) -> Path:
        self._count += 1
        room = self.room / str(self._count)
        room.mkdir()
        return room

    # Starting

    def _start(self, *, guarded: bool) -> None:
        environment = guarded_environment(os.environ) if guarded else plain_environment(os.environ)
        if isinstance(environment, str):
            self._unguarded = environment
            return
        self._starts[guarded] += 1
        nursery = NurseryProcess(
            lambda commands, events: self._command(self.root, commands, events, guarded), self._new_room(), environment
        )
        self._nurseries[guarded] = nursery
        self._selector.register(nursery.events, selectors.EVENT_READ, guarded)

    def _start_orders(self) -> Process:
        room = self._new_room()
        return Process(alone_command(self.root, "orders:import_orders", room), room, plain_environment(os.environ))

    # The loop

    def _at_work(self) -> bool:
        return bool(self._running or self._waiting or self._asking or self._still_importing())

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK):
            guarded = bool(key.data)
            nursery = self._nurseries[guarded]
            if nursery.closed:
                continue  # by what the other one has just told
            events = nursery.read()
            if events is None:
                self._bury(nursery, guarded)
                continue
            for event in events:
                self._hear(nursery, guarded, event)
        self._hold_limits()
        self._hand_out()
        if self._orders and self._orders.ended() is not None:
            self._outcomes_of_orders(self._orders)
            self._orders = None

    def _hear(self, nursery: NurseryProcess, guarded: bool, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "importing":
            nursery.importing = event["what"]
        elif kind == "where":
            self._where.update(event["where"])
        elif kind == "ready":
            nursery.facts = event
            if not guarded and self._starts[guarded] == 1:
                self._learn(event)
        elif kind == "started":
            running = self._running[event["id"]]
            running.pid, running.began = event["pid"], time.monotonic()
            running.base = limits.resident(nursery.pid) or 0
        elif kind == "ended":
            running = self._running.pop(event["id"])
            self._tell_end(running, event["status"])

    def _learn(self, facts: dict[str, Any]) -> None:
        """The plain nursery is ready: what there is, and first of all whether there is a GPU."""
        self._ops = facts["ops"]
        self._cases = [tasks.CaseFacts.from_json(one) for one in facts["cases"]]
        # Faults are told whatever was asked: without them all else is "not run", which would look like no failure.
        self.outcomes += [Outcome("ops", "", "", FAILED, fault) for fault in facts["faults"]]
        if self._wanted("ops"):
            self.outcomes += coverage.covered(self._ops, self._cases) if facts["imported"] else []
        if self._wanted("edges"):
            self.outcomes += coverage.edges(self._cases)
        if not facts["imported"]:
            self._abandon("the extension does not import")
        else:
            self._asking = True

    def _plan(self, no_gpu: str) -> None:
        planned, outcomes = tasks.plan(self.spec, self._cases, no_gpu)
        self.outcomes += outcomes
        if not self._cases:
            self.outcomes += verdicts.unasked(self.spec, "there is no case", whole=False)
        self._waiting = Waiting(planned)
        if self._unguarded:
            self.outcomes += self._waiting.drop(guarded=True, reason=self._unguarded)

    def _hand_out(self) -> None:
        if self._asking:
            if self._is_ready(False) and not self._running:
                self._give(self._nurseries[False], tasks.Task(_WHERE, None, "cuda"))
            return
        # Guarded tasks are slow: they get the first free place, not the last.
        ready = [(guarded, self._nurseries[guarded]) for guarded in (True, False) if self._is_ready(guarded)]
        for guarded, nursery in ready:
            while len(self._running) < self.spec.jobs and not any(one.alone for one in self._running.values()):
                task = self._waiting.take(guarded=guarded)
                if task is None:
                    break
                self._give(nursery, task)
        for guarded, nursery in ready:
            task = None if self._running else self._waiting.take_alone(guarded=guarded)
            if task is not None:
                self._give(nursery, task, alone=True)
        if ready and not self._running and self._waiting and not self._still_importing():
            # Nothing can start them any more: said, never waited for.
            for guarded in (True, False):
                reason = "the process that would run it is gone"
                self.outcomes += self._waiting.drop(guarded=guarded, reason=reason)

    def _is_ready(self, guarded: bool) -> bool:
        return guarded in self._nurseries and self._nurseries[guarded].ready

    def _still_importing(self) -> bool:
        return any(not one.closed and one.facts is None for one in self._nurseries.values())

    def _give(self, nursery: NurseryProcess, task: tasks.Task, *, alone: bool = False) -> None:
        room = self._new_room()
        self._running[self._count] = Running(task, nursery, room, time.monotonic(), alone=alone)
        nursery.tell(
            fork=self._count,
            check=task.check.name,
            function=task.check.function,
            case=task.case.number if task.case else None,
            device=task.device,
            # CUDA reserves address space by the terabyte: there the memory in use is watched instead.
            memory=0 if task.device == "cuda" else self.spec.memory,
            room=str(room),
        )

    # Limits

    def _hold_limits(self) -> None:
        now = time.monotonic()
        for guarded, nursery in self._nurseries.items():
            if not nursery.closed and nursery.facts is None and now - nursery.started > IMPORT_SECONDS:
                nursery.kill()  # its pipe ends, and it is buried with this reason
                nursery.importing += f" (killed after {IMPORT_SECONDS:.0f} s)"
                self._bury(nursery, guarded)
        for number, running in self._running.items():
            if running.killed:
                if now - running.killed > _GRACE:
                    running.nursery.tell(kill=number, signal=signal.SIGKILL)
                continue
            running.limit = running.exceeded(self.spec, now)
            if running.limit:
                running.nursery.tell(kill=number, signal=signal.SIGUSR1)  # faulthandler writes the stack
                running.killed = now

    # Ends

    def _tell_end(self, running: Running, status: int) -> None:
        record = journal.read(running.room / "journal")
        task, seconds = running.task, round(time.monotonic() - running.began, 3)
        if task.check is _WHERE:
            self._where.update(record.facts)
            self._asking = False
            self._plan(verdicts.no_gpu(self._where, record))
            return
        self.outcomes += [one for one in record.outcomes if one.verdict != PASSED or not record.forked]
        if not record.ended:
            end = running.end(self.spec, status, record)
            self.outcomes.append(task.outcome(FAILED, end.sentence(), seconds, **end.evidence()))
        elif record.forked:
            reason = "forks, and the copy comes back from the op as a second process: it must end with _exit()"
            self.outcomes.append(task.outcome(FAILED, reason, seconds))
        elif running.prints_too_much():  # and ended before anybody looked
            running.limit = "output"
            end = running.end(self.spec, status, record)
            self.outcomes.append(task.outcome(FAILED, end.sentence(), seconds, **end.evidence()))
        self.outcomes += self._waiting.done(task, running.limit)

    def _bury(self, nursery: NurseryProcess, guarded: bool) -> None:
        """A nursery ended: at an import, or killed later by one of its children."""
        self._selector.unregister(nursery.events)
        nursery.popen.wait()
        status = nursery.ended() or 0
        nursery.closed = True
        if nursery.facts is None:
            self._tell_import(nursery, guarded, status)
            return
        lost = [number for number, running in self._running.items() if running.nursery is nursery]
        for number in lost:
            running = self._running.pop(number)
            if running.pid:
                limits.kill_group(running.pid)
            if running.task.check is _WHERE:
                continue  # asked again
            if len(lost) > 1 and not running.alone:
                self._waiting.again_alone(running.task)
                continue
            reason = "ends the process that started it: it sends a signal to its parent"
            self.outcomes.append(running.task.outcome(FAILED, reason, **End(status).evidence()))
            check = running.task.check.name
            self.outcomes += self._waiting.done(running.task, "")
            self.outcomes += self._waiting.give_up(
                running.task, f"not tried: it ends its parent in the check {check!r}"
            )
        if self._starts[guarded] <= RESTARTS:
            self._start(guarded=guarded)
        else:
            reason = "the process that runs the cases was killed too often"
            self.outcomes += self._waiting.drop(guarded=guarded, reason=reason)
            if not guarded and self._asking:
                self._abandon(reason)

    def _tell_import(self, nursery: NurseryProcess, guarded: bool, status: int) -> None:
        what = nursery.importing
        end = End(status, log=nursery.log(), stack=nursery.log())
        lines = nursery.log().strip().splitlines()
        raised = "Traceback" in nursery.log() and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
        reason = f"importing {what} " + (f"raises {lines[-1]}" if raised else crash.end_of(status, nursery.log()))
        if guarded:
            own = what != "torch"
            reason += " under glibc's heap checks"
            if own and self._wanted("memory"):
                self.outcomes.append(Outcome("memory", "", "", FAILED, reason, evidence=end.evidence()))
            self._unguarded = reason
            self.outcomes += self._waiting.drop(guarded=True, reason=reason)
        else:
            self.outcomes.append(Outcome("ops", "", "", FAILED, reason, evidence=end.evidence()))
            self._abandon(reason)

    def _abandon(self, reason: str) -> None:
        """Nothing can be executed any more: every check that would have been is not run."""
        self.outcomes += verdicts.unasked(self.spec, reason, whole=True)
        self._asking = False
        for guarded in (True, False):
            self.outcomes += self._waiting.drop(guarded=guarded, reason=reason)
        other = self._nurseries.get(True)
        if other and not other.closed:
            self._selector.unregister(other.events)
            other.close(0)
        lost = [running.task for running in self._running.values() if running.task.check is not _WHERE]
        self.outcomes += [task.outcome(NOT_RUN, reason) for task in lost]  # their nurseries are gone, with their ends
        self._running.clear()

    def _outcomes_of_orders(self, process: Process) -> None:
        record = journal.read(process.room / "journal")
        self.outcomes += [one for one in record.outcomes if one.verdict != PASSED or not record.forked]
        if not record.ended:
            end = End(process.ended() or 0, log=process.log())
            reason = f"the process that tries import orders {end.sentence()}"
            self.outcomes.append(Outcome("import-order", "", "", FAILED, reason, evidence=end.evidence()))
