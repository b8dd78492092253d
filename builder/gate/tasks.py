"""The tasks of a run: the table of checks applied to the cases. Plain data; does not import torch.

A task is one check of one case in a process of its own. A fork is cheap because the fork server imports torch once, and
a crash belongs to exactly one op, case and check. All dtypes of a case share the task's process; the journal records
which dtype was running. A check with `together` runs several cases in one process, which can only pass them, and so
does the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.gate.check_table import TASK_CHECKS, GateCheck
from builder.gate.outcome import NOT_RUN, Outcome, Spec

#: The roles of `starter.Role`: the launcher of import orders, the judge, and the fork servers of the other tasks.
LAUNCHER, JUDGE, PLAIN, HEAP_CHECKS = "launcher", "judge", "plain", "heap-checks"
#: The phases of a task: everything in one process; or the results are sent, and the phase JUDGE follows.
INSIDE, SEND = "inside", "send"

#: Quick checks that run before the others of a case: a case that hangs in one is not tried in the others.
_FIRST = ("values", "edges")
#: Checks in which a time-out does not mean that the op hangs: the compiler or sanitizer may be slow.
_SLOW_TOOLS = ("compile", "export", "opcheck", "gpu-sanitizer")


@dataclass(frozen=True)
class CaseFacts:
    """What the scheduler, which does not import torch, knows about a case: its index in CASES and these fields.

    `missing` says why the case's op cannot be called; "" if it can. `unknown` is whether the reason is that nothing has
    this name. `line` is the line of the name in cases.py, or 0. `cpu_kernel` is whether the op has a CPU kernel, but
    every case excludes the CPU. `takes_tensor` is False if the op is known to take no tensor. The other fields are
    those of `case.Case`.
    """

    number: int
    op: str
    name: str
    edge: str = ""
    devices: Sequence[str] = ("cpu", "cuda")
    not_claimed: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    unknown: bool = False
    line: int = 0
    cpu_kernel: bool = False
    side_effects: bool = False
    takes_tensor: bool = True


@dataclass(eq=False)
class Task:
    """One check of one case, or of the extension: what its next process does, and with which others."""

    check: GateCheck
    #: None if it is about the extension.
    case: CaseFacts | None
    #: "cpu" or "cuda".
    device: str
    #: INSIDE, SEND or JUDGE.
    phase: str = INSIDE
    #: The file of results, which the task writes in the phase SEND and reads in the phase JUDGE.
    data: Path | None = None
    #: Whether it has a process of its own, because a process with several tasks has not passed it.
    alone: bool = False
    #: Whether no other process may run at the same time, because one of several has killed their fork server.
    exclusive: bool = False

    @property
    def op(self) -> str:
        """The op, or "" if the task is about the extension."""
        return self.case.op if self.case else ""

    @property
    def name(self) -> str:
        """The name of the case, or "" if the task is about the extension."""
        return self.case.name if self.case else ""

    @property
    def number(self) -> int | None:
        """The number of the case, or None if the task is about the extension."""
        return self.case.number if self.case else None

    @property
    def role(self) -> str:
        """The role of the fork server of its next process."""
        return JUDGE if self.phase == JUDGE else HEAP_CHECKS if self.check.heap_checks else PLAIN

    @property
    def shares(self) -> bool:
        """Whether its next process may do other tasks of the check too."""
        if self.alone or self.exclusive or self.case is None:
            return False
        return self.phase == JUDGE or (self.check.together and not self.case.side_effects)

    def function(self) -> str:
        """Return the function of its next process as `module:function` in `builder.gate`."""
        module, _, name = self.check.function.partition(":")
        if self.phase == JUDGE:
            return f"processes.judge_process:{name}"
        return f"checks.{module}:{'send_' if self.phase == SEND else ''}{name}"

    def outcome(self, verdict: str, reason: str, seconds: float = 0.0, **evidence: Any) -> Outcome:  # noqa: ANN401
        """Return an outcome of this task that its own process did not report."""
        return Outcome(self.check.name, self.op, self.name, verdict, reason, seconds, dict(evidence))


def plan(spec: Spec, cases: Sequence[CaseFacts], no_gpu: str) -> tuple[list[Task], list[Outcome]]:
    """Return the tasks, and a "not run" outcome for each check of a case that cannot run.

    `no_gpu` is the reason why there is no GPU, or "" if there is one.
    """
    tasks: list[Task] = []
    outcomes: list[Outcome] = []
    for check in TASK_CHECKS:
        if spec.checks and check.name not in spec.checks:
            continue
        if check.per_extension:
            tasks.append(Task(check, None, "cpu"))
            continue
        for case in cases:
            only_cuda = check.device == "cpu" and "cpu" not in case.devices and not check.heap_checks
            device = "cuda" if check.device == "cuda" or only_cuda else "cpu"
            task = Task(check, case, device)
            reason = _why_not(check, case, device, no_gpu)
            if reason:
                outcomes.append(task.outcome(NOT_RUN, reason))
            elif _applies(check, case):
                tasks.append(task)
        if check.edges == "without":
            plain = {case.op.removesuffix(".default") for case in cases if not case.edge}
            ops = dict.fromkeys(case.op for case in cases if case.op.removesuffix(".default") not in plain)
            reason = "every case of this op is an edge case: add a case without `edge`"
            outcomes += [Outcome(check.name, op, "", NOT_RUN, reason) for op in ops]
    return tasks, outcomes


def _applies(check: GateCheck, case: CaseFacts) -> bool:
    """Whether the check has a task for this case; a GPU check has none for a case without CUDA."""
    if check.device == "cuda" and "cuda" not in case.devices:
        return False
    return check.edges == "with" or (check.edges == "only") == bool(case.edge)


def _why_not(check: GateCheck, case: CaseFacts, device: str, no_gpu: str) -> str:
    """Return the reason why this check cannot run for this case, or ""."""
    if not _applies(check, case):
        return ""
    if case.missing:
        return case.missing
    if check.name in case.not_claimed:
        return f"not claimed: {case.not_claimed[check.name]}"
    if check.device == "none":
        return ""
    if case.cpu_kernel and check.device == "cpu" and (device not in case.devices or no_gpu):
        return (
            'the case says devices=["cuda"], but the op has a CPU kernel: remove `devices` from its cases in cases.py'
            + (f", line {case.line}" if case.line else "")
        )
    if device not in case.devices and check.device == "cpu":
        return f"the check runs on {device.upper()}, and the case says that the op has no {device.upper()} kernel"
    if device == "cuda" and no_gpu:
        return no_gpu
    return ""


class TaskQueue:
    """The tasks that wait for a process. The other tasks of a case wait until its first one has an outcome."""

    def __init__(self, tasks: Iterable[Task] = (), jobs: int = 1) -> None:
        """`jobs` is how many processes run at the same time."""
        self._waiting = sorted(tasks, key=lambda task: task.check.name not in _FIRST)
        self._unfinished = {task.number for task in self._waiting if task.check.name in _FIRST}
        #: How many tasks may share a process, so that each job has work.
        self._share = -(-sum(task.shares for task in self._waiting) // jobs)

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, role: str, *, gpu: bool = True, idle: bool = False) -> list[Task]:
        """Remove and return the tasks of the next process of this fork server; none if none can start now.

        One process of the judge judges all results of a check, so it waits until no task sends one. `gpu` is whether
        the process may use the GPU, `idle` whether no other process runs.
        """
        if role == JUDGE and any(one.phase == SEND for one in self._waiting):
            return []
        ready = [
            one
            for one in self._waiting
            if one.role == role
            and (gpu or one.device == "cpu")
            and (idle or not one.exclusive)
            and (one.check.name in _FIRST or one.number not in self._unfinished)
        ]
        if not ready:
            return []
        first, *rest = ready
        others = [one for one in rest if (one.check, one.device) == (first.check, first.device) and one.shares]
        most = len(others) if role == JUDGE else self._share - 1
        taken = [first, *others[:most]] if first.shares else [first]
        self._waiting = [one for one in self._waiting if one not in taken]
        return taken

    def put_back(self, tasks: Sequence[Task]) -> None:
        """Let these tasks have another process, before the others."""
        self._waiting[:0] = tasks

    def done(self, task: Task, limit: str = "") -> list[Outcome]:
        """Let the tasks start that wait for this one, or drop them if it exceeded its time; return the dropped ones.

        `limit` is the limit the task was killed for, or "".
        """
        if task.check.name in _FIRST:
            self._unfinished.discard(task.number)
        if limit != "time" or task.check.name in _SLOW_TOOLS:
            return []
        return self.give_up(task, f"not run, because the case exceeded the time limit in the check {task.check.name!r}")

    def give_up(self, task: Task, reason: str) -> list[Outcome]:
        """Drop the other tasks of the same case; return them as "not run"."""
        others = self._remove(lambda one: task.case is not None and one.number == task.number)
        return [one.outcome(NOT_RUN, reason) for one in others]

    def drop(self, *roles: str) -> list[Task]:
        """Remove and return the tasks for these fork servers."""
        return self._remove(lambda one: one.role in roles)

    def _remove(self, matches: Callable[[Task], bool]) -> list[Task]:
        removed = [one for one in self._waiting if matches(one)]
        self._waiting = [one for one in self._waiting if one not in removed]
        self._unfinished -= {one.number for one in removed if one.check.name in _FIRST}
        return removed
