"""The jobs of a run: which checks run on which cases, in which processes, and in what order. Does not import torch.

A job is one check of one case in a process of its own. A fork is cheap because the fork server imports torch once, and
a crash belongs to exactly one op, case and check. All dtypes of a case share the process; the journal records which
dtype was running. A check with `together` runs several cases in one process, which can only pass them, and so does the
judge. An order of imports is a job, too.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.gate.amounts import size_text
from builder.gate.check_table import TASK_CHECKS, GateCheck
from builder.gate.coverage import CaseFacts
from builder.gate.outcome import NOT_RUN, Outcome, Spec
from builder.gate.processes.journal import JOURNAL, LOG, STACK, TaskRecord, new_key, read
from builder.gate.processes.servers import HEAP_CHECKS, JUDGE, ORDERS, PLAIN, Server
from builder.gate.system import rlimits
from builder.gate.system.process_end import ProcessExit, crash_frame, fatal_signal, tail
from builder.gate.system.process_tree import is_stopped, listed_descendants

#: The phases of a job: everything in one process; or the results are sent, and the phase JUDGE follows.
INSIDE, SEND = "inside", "send"

#: Quick checks that run before the others of a case: a case that hangs in one is not tried in the others.
_FIRST = ("values", "edges")
#: Checks in which a time-out does not mean that the op hangs: the compiler or sanitizer may be slow.
_SLOW_TOOLS = ("compile", "export", "opcheck", "gpu-sanitizer")

#: Bytes of output after which a process is killed, so that its log cannot fill the disk.
OUTPUT_BYTES = 64 << 20
#: Processes of a job at the same time, its own included.
MOST_PROCESSES = 256
#: The part of the time limit after which a process with several cases begins no further case.
_ENOUGH = 0.25
_GRACE = 0.3  # seconds between the signal to write the stack and SIGKILL
_PATIENCE = 3.0  # seconds after SIGKILL in which a server must report the end of the process


@dataclass(eq=False)
class Job:
    """One check of some cases, of the extension, or of an order of imports; then its process, and how that ended."""

    check: GateCheck
    #: One, or several that share the process; none if it is about the extension.
    cases: tuple[CaseFacts, ...] = ()
    device: str = "cpu"
    phase: str = INSIDE
    #: For each case the file of results, which the process writes in the phase SEND and reads in the phase JUDGE.
    data: tuple[str, ...] = ()
    #: The modules that it imports, and how (`import_order.Attempt`).
    order: tuple[str, ...] = ()
    mode: str = ""
    #: Whether its case has a process of its own, because a process with several cases has not passed it.
    alone: bool = False
    #: Whether no other process may run at the same time, because one of several has killed their fork server.
    exclusive: bool = False

    #: The number that names its process in the events of the server.
    id: int = field(default=0, init=False)
    server: Server = field(init=False)
    #: The directory of the process, which contains journal, log and stack.
    folder: Path = field(default=Path(), init=False)
    key: bytes = field(default_factory=new_key, init=False)
    #: Seconds and bytes of memory that it may use.
    seconds: float = field(default=0.0, init=False)
    memory: int = field(default=0, init=False)
    #: Start by the monotonic clock, in seconds.
    began: float = field(default=0.0, init=False)
    #: The process id, 0 until the fork server has sent it.
    pid: int = field(default=0, init=False)
    #: Bytes of memory of the fork server when it forked the process.
    base: int = field(default=0, init=False)
    #: The limit the process is being killed for: "time", "memory", "processes", "output", "stopped" or "".
    limit: str = field(default="", init=False)
    #: When killing began, by the monotonic clock; 0 if not.
    killed: float = field(default=0.0, init=False)
    #: The wait status and the content of the journal, when the process has ended.
    status: int = field(default=0, init=False)
    record: TaskRecord = field(default_factory=TaskRecord, init=False)

    @property
    def case(self) -> CaseFacts | None:
        """The first case, which is the only one of most processes; None if the job is about the extension."""
        return self.cases[0] if self.cases else None

    @property
    def op(self) -> str:
        """The op of the first case, or ""."""
        return self.case.op if self.case else ""

    @property
    def number(self) -> int | None:
        """The number of the first case, or None."""
        return self.case.number if self.case else None

    @property
    def role(self) -> str:
        """The role of the fork server of its process."""
        if self.order:
            return ORDERS
        return JUDGE if self.phase == JUDGE else HEAP_CHECKS if self.check.heap_checks else PLAIN

    @property
    def shares(self) -> bool:
        """Whether its process may do the check for other cases too."""
        if self.alone or self.exclusive or self.case is None:
            return False
        return self.phase == JUDGE or (self.check.together and not self.case.side_effects)

    def outcome(self, verdict: str, reason: str, seconds: float = 0.0, **evidence: Any) -> Outcome:  # noqa: ANN401
        """Return an outcome of this job, of its first case, that its own process did not report."""
        name = self.case.name if self.case else ""
        return Outcome(self.check.name, self.op, name, verdict, reason, seconds, dict(evidence))

    def each(self) -> list[Job]:
        """Return a job that waits for a process for each case."""
        data = self.data or ("",) * len(self.cases)
        pairs = zip(self.cases, data)
        return [replace(self, cases=(case,), data=(path,)) for case, path in pairs] or [replace(self)]

    def start(self, number: int, server: Server, folder: Path, spec: Spec) -> None:
        """Let this fork server start its process."""
        self.id, self.server, self.folder, self.began = number, server, folder, time.monotonic()
        self.seconds, self.memory = spec.seconds * self.check.time_factor, spec.memory
        if self.phase == SEND:
            self.data = (str(folder / "results"),)
        module, _, name = self.check.function.partition(":")
        if self.phase == JUDGE:
            function = f"processes.judge_process:{name}"
        else:
            function = f"checks.{module}:{'send_' if self.phase == SEND else ''}{name}"
        request: dict[str, Any] = (
            {"order": self.order, "mode": self.mode}
            if self.order
            else {
                "check": self.check.name,
                "function": function,
                "cases": [one.number for one in self.cases],
                "seconds": self.seconds * _ENOUGH,
                "device": self.device,
                # CUDA reserves terabytes of address space, so for CUDA only the memory in use is limited.
                "memory": 0 if self.device == "cuda" else self.memory,
                "data": self.data or ("",) * max(len(self.cases), 1),
            }
        )
        server.send(self.key, fork=number, task_dir=str(folder), **request)

    def started(self, pid: int) -> None:
        """Record that the process runs."""
        self.pid, self.began = pid, time.monotonic()
        self.base = rlimits.resident(self.server.pid) or 0

    def ended(self, status: int) -> None:
        """Record how the process has ended, and what it has written to its journal."""
        self.status, self.record = status, read(self.folder / JOURNAL, self.key)

    def enforce(self, now: float) -> None:
        """Kill the process if it exceeds a limit, and the fork server if it does not obey."""
        if not self.killed:
            self.limit = self._exceeded(now)
            if self.limit:  # faulthandler writes the stack
                self.server.send(kill=self.id, signal=signal.SIGABRT if self.order else signal.SIGUSR1)
                self.killed = now
        elif now - self.killed > _GRACE + _PATIENCE:
            self.server.kill()
        elif now - self.killed > _GRACE:
            self.server.send(kill=self.id, signal=signal.SIGKILL)

    def _exceeded(self, now: float) -> str:
        """Return the limit that it exceeds now, or ""; a server that is stopped never starts it."""
        if now - self.began > self.seconds:
            return "time"
        if self.pid and is_stopped(self.pid):
            return "stopped"
        below = listed_descendants(self.pid) if self.pid else []
        if len(below) >= MOST_PROCESSES:
            return "processes"
        used = rlimits.shared_out([self.pid, *below]) if below else 0
        if self.pid and max(used, rlimits.resident(self.pid) or 0) > self.base + self.memory:
            return "memory"
        return "output" if self.prints_too_much() else ""

    def prints_too_much(self) -> bool:
        """Whether its log is larger than OUTPUT_BYTES."""
        try:
            return (self.folder / LOG).stat().st_size > OUTPUT_BYTES
        except OSError:
            return False

    def process_exit(self) -> ProcessExit:
        """Return how the process ended, from its wait status and the files it left."""
        allowed = {
            "time": f"{self.seconds:g} s",
            "memory": size_text(self.memory),
            "processes": str(MOST_PROCESSES),
            "output": size_text(OUTPUT_BYTES),
        }
        stack = tail(self.folder / STACK, 1 << 16)
        return ProcessExit(
            self.status if self.limit else fatal_signal(self.status, stack) or self.status,
            self.limit,
            allowed.get(self.limit, ""),
            self.record.step,
            tail(self.folder / LOG),
            stack,
            str(crash_frame(stack) or ""),
        )


def plan(spec: Spec, cases: Sequence[CaseFacts], no_gpu: str) -> tuple[list[Job], list[Outcome]]:
    """Return the jobs, and a "not run" outcome for each check of a case that cannot run.

    `no_gpu` is the reason why there is no GPU, or "" if there is one.
    """
    jobs: list[Job] = []
    outcomes: list[Outcome] = []
    for check in TASK_CHECKS:
        if spec.checks and check.name not in spec.checks:
            continue
        if check.per_extension:
            jobs.append(Job(check))
            continue
        for case in cases:
            if not _applies(check, case):
                continue
            only_cuda = check.device == "cpu" and "cpu" not in case.devices and not check.heap_checks
            job = Job(check, (case,), "cuda" if check.device == "cuda" or only_cuda else "cpu")
            if reason := _why_not(check, case, job.device, no_gpu):
                outcomes.append(job.outcome(NOT_RUN, reason))
            else:
                jobs.append(job)
        if check.edges == "without":
            plain = {case.op.removesuffix(".default") for case in cases if not case.edge}
            ops = dict.fromkeys(case.op for case in cases if case.op.removesuffix(".default") not in plain)
            reason = "every case of this op is an edge case: add a case without `edge`"
            outcomes += [Outcome(check.name, op, "", NOT_RUN, reason) for op in ops]
    return jobs, outcomes


def _applies(check: GateCheck, case: CaseFacts) -> bool:
    """Whether the check has a job for this case; a GPU check has none for a case without CUDA."""
    if check.device == "cuda" and "cuda" not in case.devices:
        return False
    return check.edges == "with" or (check.edges == "only") == bool(case.edge)


def _why_not(check: GateCheck, case: CaseFacts, device: str, no_gpu: str) -> str:
    """Return the reason why this check cannot run for this case, or ""."""
    if case.missing:
        return case.missing
    if check.name in case.not_claimed:
        return f"not claimed: {case.not_claimed[check.name]}"
    if check.device == "none":
        return ""
    if case.cpu_kernel and check.device == "cpu" and (device not in case.devices or no_gpu):
        return (
            'the case says devices=["cuda"], but the op has a CPU kernel: remove `devices` from its cases in cases.py'
        )
    if device not in case.devices and check.device == "cpu":
        return f"the check runs on {device.upper()}, and the case says that the op has no {device.upper()} kernel"
    return no_gpu if device == "cuda" else ""


class Queue:
    """The jobs that wait for a process. The other jobs of a case wait until its first one has an outcome."""

    def __init__(self, jobs: Iterable[Job] = (), processes: int = 1) -> None:
        """`processes` is how many run at the same time."""
        self._waiting = sorted(jobs, key=lambda job: job.check.name not in _FIRST)
        self._unfinished = {job.number for job in self._waiting if job.check.name in _FIRST}
        #: How many cases may share a process, so that each process has work.
        self._share = -(-sum(job.shares for job in self._waiting) // processes)

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, role: str, *, gpu: bool = True, idle: bool = False) -> Job | None:
        """Remove and return the next job of this fork server; None if none can start now.

        One process of the judge judges all results of a check, so it waits until no job sends one. `gpu` is whether
        the process may use the GPU, `idle` whether no other process runs.
        """
        if role == JUDGE and any(one.phase == SEND for one in self._waiting):
            return None
        ready = [
            one
            for one in self._waiting
            if one.role == role
            and (gpu or one.device == "cpu")
            and (idle or not one.exclusive)
            and (one.check.name in _FIRST or one.number not in self._unfinished)
        ]
        if not ready:
            return None
        first, *rest = ready
        others = [one for one in rest if (one.check, one.device) == (first.check, first.device) and one.shares]
        most = len(others) if role == JUDGE else self._share - 1
        taken = [first, *others[:most]] if first.shares else [first]
        self._waiting = [one for one in self._waiting if one not in taken]
        cases, data = ([each for one in taken for each in getattr(one, name)] for name in ("cases", "data"))
        return replace(first, cases=tuple(cases), data=tuple(data))

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Let these jobs have another process, before the others."""
        self._waiting[:0] = jobs

    def done(self, job: Job) -> list[Outcome]:
        """Let the jobs start that wait for this one, or drop them if it exceeded its time; return the dropped ones."""
        if job.check.name in _FIRST:
            self._unfinished.discard(job.number)
        if job.limit != "time" or job.check.name in _SLOW_TOOLS:
            return []
        return self.give_up(job, f"not run, because the case exceeded the time limit in the check {job.check.name!r}")

    def give_up(self, job: Job, reason: str) -> list[Outcome]:
        """Drop the other jobs of the same case; return them as "not run"."""
        others = self._remove(lambda one: job.case is not None and one.number == job.number)
        return [one.outcome(NOT_RUN, reason) for one in others]

    def drop(self, *roles: str) -> list[Job]:
        """Remove and return the jobs for these fork servers."""
        return self._remove(lambda one: one.role in roles)

    def _remove(self, matches: Callable[[Job], bool]) -> list[Job]:
        removed = [one for one in self._waiting if matches(one)]
        self._waiting = [one for one in self._waiting if one not in removed]
        self._unfinished -= {one.number for one in removed if one.check.name in _FIRST}
        return removed
