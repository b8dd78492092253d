"""The judge from the scheduler's side: which tasks it judges, and what it knows about cases.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builder.gate.check_table import CHECKS
from builder.gate.outcome import Spec
from builder.gate.processes import spawn
from builder.gate.processes.journal import TaskRecord
from builder.gate.processes.running_task import RunningTask
from builder.gate.processes.server_pool import ServerPool
from builder.gate.processes.spawn import ForkServerProcess
from builder.gate.system.exit_status import ProcessExit
from builder.gate.tasks import INSIDE, JUDGE, SEND, CaseFacts, Step, Task


@dataclass
class Judging:
    """The judge: a fork server that never imports the extension."""

    #: Its process, among others.
    pool: ServerPool
    #: Steps that can start now, after an earlier step of the same task.
    next: list[Step] = field(default_factory=list)
    #: Why the judge has ended, or "".
    lost: str = ""
    #: Whether it has said which cases it can judge, or has ended.
    answered: bool = False
    _facts: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def wanted(spec: Spec) -> bool:
        """Whether a selected check is judged by the judge."""
        return spec.has_cases and any(CHECKS[name].judged for name in spec.checks or CHECKS)

    def ready(self, facts: Mapping[str, Any]) -> None:
        """Store what the judge knows about cases.py."""
        self._facts, self.answered = facts, True

    def lose(self, server: ForkServerProcess) -> bool:
        """The judge has ended; return whether it had not answered before."""
        end = ProcessExit(self.pool.wait(server), log=server.log())
        self.lost = f"the judge, which compares the results, {end.sentence()}"
        answered, self.answered = self.answered, True
        return not answered

    def take(self, *, wait: bool) -> tuple[ForkServerProcess, Step] | None:
        """Remove and return a step that can start now, and its server.

        One process of the judge judges all results of a check that have arrived. `wait` is whether more will arrive.
        """
        ready = self.pool.ready()
        for step in self.next:
            server = ready.get(spawn.JUDGE if step.phase == JUDGE else spawn.PLAIN)
            if server is None or (step.phase == JUDGE and wait):
                continue
            others = [
                one
                for one in self.next
                if one is not step and one.phase == JUDGE == step.phase and one.task.check is step.task.check
            ]
            others = [] if step.alone else [one for one in others if not one.alone]
            self.next = [one for one in self.next if one is not step and one not in others]
            return server, replace(step, others=tuple(others))
        return None

    def put_back(self, step: Step, again: Sequence[Task], alone: Sequence[Task]) -> None:
        """Judge these tasks of a step again; those in `alone` each get their own process."""
        self.next += [replace(one, others=(), alone=one.task in alone) for one in step.steps if one.task in again]

    def take_lost(self) -> list[Task]:
        """Remove the steps that wait for a judge that has ended, and return their tasks."""
        lost = [step for step in self.next if self.lost and step.phase == JUDGE]
        self.next = [step for step in self.next if step not in lost]
        return [task for step in lost for task in step.tasks]

    def first_step(self, task: Task) -> Step:
        """Return how a task starts: cases on a GPU, and a cases.py that needs the extension, are judged inside."""
        judged = task.check.judged and task.device == "cpu" and self.answered and not self._facts.get("problem")
        return Step(task, SEND if judged else INSIDE)

    def after(self, running: RunningTask, status: int, record: TaskRecord) -> Step | None:
        """Return the step that follows a process that has done its part, or None: it has decided, or has failed."""
        step = running.step
        whole = record.ended and not (record.foreign or record.forked or record.outcomes or status or running.limit)
        if not whole or running.prints_too_much():
            return None
        if step.phase == SEND:
            return Step(step.task, JUDGE, step.data)
        return Step(step.task) if step.phase == JUDGE and record.facts.get(INSIDE) is True else None

    def other_cases(self, cases: Sequence[CaseFacts]) -> str:
        """Return a sentence if the process of the extension names other cases than the judge has read, or ""."""
        if self._facts.get("problem") or not self._facts:
            return ""
        have = [[case.op, case.name, case.edge, list(case.devices), dict(case.not_claimed)] for case in cases]
        if have == self._facts["cases"]:
            return ""
        return (
            "cases.py has other cases when the extension is imported than without it: "
            "define the cases independently of the extension"
        )
