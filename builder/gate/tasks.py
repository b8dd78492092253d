"""The tasks of a run: the table of checks applied to the cases. Plain data; does not import torch.

A task is one check of one case in a process of its own. A fork is cheap because the fork server imports torch once, and
a crash belongs to exactly one op, case and check. All dtypes of a case share the task's process; the journal records
which dtype was running. A check with `together` runs several cases in one process, which can only pass them, and so
does the judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.gate.check_table import TASK_CHECKS, GateCheck
from builder.gate.outcome import NOT_RUN, Outcome, Spec

#: The phases of a task: everything in one process; or the results are sent, and then judged.
INSIDE, SEND, JUDGE = "inside", "send", "judge"


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


@dataclass(frozen=True)
class Task:
    """A check, the case or None for the extension, and the device."""

    check: GateCheck
    case: CaseFacts | None
    device: str

    @property
    def op(self) -> str:
        """The op, or "" if the task is about the extension."""
        return self.case.op if self.case else ""

    @property
    def name(self) -> str:
        """The name of the case, or "" if the task is about the extension."""
        return self.case.name if self.case else ""

    def outcome(self, verdict: str, reason: str, seconds: float = 0.0, **evidence: Any) -> Outcome:  # noqa: ANN401
        """Return an outcome of this task that its own process did not report."""
        return Outcome(self.check.name, self.op, self.name, verdict, reason, seconds, dict(evidence))


@dataclass(frozen=True)
class Step:
    """What a process does for a task: the phase, and the file of results that it reads or writes.

    `others` are steps of the same phase and check that the process does after this one. `alone` is whether there can be
    others.
    """

    task: Task
    phase: str = INSIDE
    data: Path | None = None
    others: tuple[Step, ...] = ()
    alone: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step of the process, in order."""
        return (self, *self.others)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every task of the process, in order."""
        return tuple(step.task for step in self.steps)

    def function(self) -> str:
        """Return the function as `module:function` in `builder.gate`."""
        module, _, name = self.task.check.function.partition(":")
        return {SEND: f"checks.{module}:send_{name}", JUDGE: f"processes.judge_process:{name}"}.get(
            self.phase, f"checks.{module}:{name}"
        )


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
            device = _device(check, case)
            task = Task(check, case, device)
            reason = _why_not(check, case, device, no_gpu)
            if reason:
                outcomes.append(task.outcome(NOT_RUN, reason))
            elif _applies(check, case):
                tasks.append(task)
        outcomes += _ops_with_edge_cases_only(check, cases)
    return tasks, outcomes


def _ops_with_edge_cases_only(check: GateCheck, cases: Sequence[CaseFacts]) -> list[Outcome]:
    """Return "not run" for each op that has only edge cases, if the check skips edge cases."""
    if check.edges != "without":
        return []
    plain = {_without_default(case.op) for case in cases if not case.edge}
    ops = dict.fromkeys(case.op for case in cases if _without_default(case.op) not in plain)
    reason = "every case of this op is an edge case: add a case without `edge`"
    return [Outcome(check.name, op, "", NOT_RUN, reason) for op in ops]


def _without_default(op: str) -> str:
    """Return `ns::op` for `ns::op.default`: both name the same op."""
    return op[: -len(".default")] if "::" in op and op.endswith(".default") else op


def _applies(check: GateCheck, case: CaseFacts) -> bool:
    """Whether the check has a task for this case; a GPU check has none for a case without CUDA."""
    if check.device == "cuda" and "cuda" not in case.devices:
        return False
    return check.edges == "with" or (check.edges == "only") == bool(case.edge)


def _device(check: GateCheck, case: CaseFacts) -> str:
    if check.device == "cpu" and "cpu" not in case.devices and not check.heap_checks:
        return "cuda"
    return "cuda" if check.device == "cuda" else "cpu"


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
