"""A running task: its process, its directory, its start, and whether it exceeds a limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.gate.outcome import Spec
from builder.gate.processes.journal import LOG, STACK, Record
from builder.gate.processes.spawn import ForkServerProcess
from builder.gate.system import crash, rlimits
from builder.gate.system.exit_status import ProcessExit, tail
from builder.gate.system.sizes import size_text
from builder.gate.tasks import Task

#: Bytes of output after which a task is killed, so that its log cannot fill the disk.
OUTPUT_BYTES = 64 << 20


@dataclass
class RunningTask:
    """A running task.

    Attributes:
        task: the task.
        server: the fork server that forked its process.
        task_dir: its directory, which contains journal, log and stack.
        began: start by the monotonic clock, in seconds.
        pid: its process id, 0 until the fork server has sent it.
        base: bytes of memory of the fork server when it forked the process.
        limit: the limit the process is being killed for: "time", "memory", "output" or "".
        killed: when killing began, by the monotonic clock; 0 if not.
        exclusive: whether no other task may run at the same time.

    """

    task: Task
    server: ForkServerProcess
    task_dir: Path
    began: float
    pid: int = 0
    base: int = 0
    limit: str = ""
    killed: float = 0.0
    exclusive: bool = False

    def exceeded(self, spec: Spec, now: float) -> str:
        """Return the limit that the process exceeds now, or ""."""
        if not self.pid:
            return ""
        if now - self.began > spec.seconds * self.task.check.time_factor:
            return "time"
        if (rlimits.resident(self.pid) or 0) > self.base + spec.memory:
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
            "output": size_text(OUTPUT_BYTES),
        }.get(self.limit, "")

    def process_exit(self, spec: Spec, status: int, record: Record) -> ProcessExit:
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
