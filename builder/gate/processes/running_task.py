"""A running task: its process, its directory, its start, and whether it exceeds a limit."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.gate.amounts import size_text
from builder.gate.outcome import Spec
from builder.gate.processes.journal import JOURNAL, LOG, STACK, TaskRecord, new_key, read
from builder.gate.processes.spawn import ForkServerProcess
from builder.gate.system import crash, rlimits
from builder.gate.system.exit_status import ProcessExit, tail
from builder.gate.system.process_tree import is_stopped, listed_descendants
from builder.gate.tasks import SEND, Step, Task

#: Bytes of output after which a task is killed, so that its log cannot fill the disk.
OUTPUT_BYTES = 64 << 20

#: Processes of a task at the same time, its own included.
MOST_PROCESSES = 256

#: The part of the time limit after which a process with several cases begins no further case.
_ENOUGH = 0.25


@dataclass
class RunningTask:
    """A running task."""

    #: The task, and which part of it the process does.
    step: Step
    #: The key of its journal.
    key: bytes
    #: The fork server that forked its process.
    server: ForkServerProcess
    #: Its directory, which contains journal, log and stack.
    task_dir: Path
    #: Start by the monotonic clock, in seconds.
    began: float
    #: Its process id, 0 until the fork server has sent it.
    pid: int = 0
    #: Bytes of memory of the fork server when it forked the process.
    base: int = 0
    #: The limit the process is being killed for: "time", "memory", "processes", "output", "stopped" or "".
    limit: str = ""
    #: When killing began, by the monotonic clock; 0 if not.
    killed: float = 0.0
    #: Whether no other task may run at the same time.
    exclusive: bool = False

    @property
    def task(self) -> Task:
        """The task."""
        return self.step.task

    def started(self, pid: int) -> None:
        """Record that its process runs."""
        self.pid, self.began = pid, time.monotonic()
        self.base = rlimits.resident(self.server.pid) or 0

    def exceeded(self, spec: Spec, now: float) -> str:
        """Return the limit that the process exceeds now, or ""; a server that is stopped never starts it."""
        if now - self.began > spec.seconds * self.task.check.time_factor:
            return "time"
        if self.pid and is_stopped(self.pid):
            return "stopped"
        below = listed_descendants(self.pid) if self.pid else []
        if len(below) >= MOST_PROCESSES:
            return "processes"
        used = rlimits.shared_out([self.pid, *below]) if below else 0
        if self.pid and max(used, rlimits.resident(self.pid) or 0) > self.base + spec.memory:
            return "memory"
        return "output" if self.prints_too_much() else ""

    def prints_too_much(self) -> bool:
        """Whether its log is larger than OUTPUT_BYTES."""
        try:
            return (self.task_dir / LOG).stat().st_size > OUTPUT_BYTES
        except OSError:
            return False

    def allowed(self, spec: Spec) -> str:
        """Return the limit it was killed for as text: "60 s"; "" if it was not killed."""
        return {
            "time": f"{spec.seconds * self.task.check.time_factor:g} s",
            "memory": size_text(spec.memory),
            "processes": str(MOST_PROCESSES),
            "output": size_text(OUTPUT_BYTES),
        }.get(self.limit, "")

    def record(self) -> TaskRecord:
        """Return what it has written to its journal."""
        return read(self.task_dir / JOURNAL, self.key)

    def process_exit(self, spec: Spec, status: int, record: TaskRecord) -> ProcessExit:
        """Return how the process ended, from its wait status and the files it left."""
        stack = tail(self.task_dir / STACK, 1 << 16)
        frame = crash.crash_frame(stack)
        return ProcessExit(
            status if self.limit else crash.fatal_signal(status, stack) or status,
            self.limit,
            self.allowed(spec),
            record.step,
            tail(self.task_dir / LOG),
            stack,
            str(frame) if frame else "",
        )


def start(
    number: int, step: Step, server: ForkServerProcess, task_dir: Path, spec: Spec, *, exclusive: bool
) -> RunningTask:
    """Let a fork server start a process for this step; `number` names it in the events of the server."""
    task, key = step.task, new_key()
    if step.phase == SEND:
        step = replace(step, data=task_dir / "results")
    server.send_command(
        key,
        fork=number,
        check=task.check.name,
        function=step.function(),
        cases=[one.case.number for one in step.tasks if one.case],
        seconds=spec.seconds * task.check.time_factor * _ENOUGH,
        device=task.device,
        # CUDA reserves terabytes of address space, so for CUDA only the memory in use is limited.
        memory=0 if task.device == "cuda" else spec.memory,
        task_dir=str(task_dir),
        data=[str(one.data or "") for one in step.steps],
    )
    return RunningTask(step, key, server, task_dir, time.monotonic(), exclusive=exclusive)


# Enforces the limits of running tasks and of imports.

#: Seconds that importing torch and the extension may take, from a cold disk.
IMPORT_SECONDS = 180.0
_GRACE = 0.3  # seconds between the signal to write the stack and SIGKILL
_PATIENCE = 3.0  # seconds after SIGKILL in which a server must report the end of the task


def enforce(
    spec: Spec, running: Mapping[int, RunningTask], servers: Sequence[ForkServerProcess]
) -> Iterator[ForkServerProcess]:
    """Kill what exceeds its limit, and the servers that a signal has stopped; yield each server that imported then.

    The pipe of a server that is killed later, or that does not obey, shows its end.
    """
    now = time.monotonic()
    for server in servers:
        stopped = server.pid and is_stopped(server.pid)
        late = server.facts is None and now - server.started > IMPORT_SECONDS
        if stopped or late:
            server.kill_all()
        if server.facts is None and (stopped or late):
            server.importing += " (stopped by a signal)" if stopped else f" (killed after {IMPORT_SECONDS:.0f} s)"
            yield server
    for number, one in running.items():
        if not one.killed:
            one.limit = one.exceeded(spec, now)
            if one.limit:
                one.server.send_command(kill=number, signal=signal.SIGUSR1)  # faulthandler writes the stack
                one.killed = now
        elif now - one.killed > _GRACE + _PATIENCE:
            one.server.kill()
        elif now - one.killed > _GRACE:
            one.server.send_command(kill=number, signal=signal.SIGKILL)
