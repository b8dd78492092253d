"""A task at work: where, since when, and whether it has run into a limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.gate import crash, journal, limits
from builder.gate.ends import End, amount, tail
from builder.gate.outcome import Spec
from builder.gate.processes import NurseryProcess
from builder.gate.tasks import Task

#: A check that prints more is ended: its log would fill the disk.
OUTPUT_BYTES = 64 << 20


@dataclass
class Running:
    """A task at work.

    Attributes:
        task: what it is.
        nursery: who forked its process.
        room: its folder: journal, log, stack.
        began: when, by the monotonic clock.
        pid: its process, 0 until the nursery has told.
        base: bytes of memory its nursery had when it was forked.
        limit: what it is being killed for: "time", "memory", "output" or nothing.
        killed: when that began, by the monotonic clock.
        alone: nothing else runs beside it.

    """

    task: Task
    nursery: NurseryProcess
    room: Path
    began: float
    pid: int = 0
    base: int = 0
    limit: str = ""
    killed: float = 0.0
    alone: bool = False

    def exceeded(self, spec: Spec, now: float) -> str:
        """The limit it has run into, or nothing."""
        if not self.pid:
            return ""
        if now - self.began > spec.seconds * self.task.check.patience:
            return "time"
        if (limits.resident(self.pid) or 0) > self.base + spec.memory:
            return "memory"
        return "output" if self.prints_too_much() else ""

    def prints_too_much(self) -> bool:
        """Whether its log is larger than allowed."""
        try:
            return (self.room / "log").stat().st_size > OUTPUT_BYTES
        except OSError:
            return False

    def allowed(self, spec: Spec) -> str:
        """The limit it was killed for, in words."""
        return {
            "time": f"{spec.seconds * self.task.check.patience:g} s",
            "memory": amount(spec.memory),
            "output": amount(OUTPUT_BYTES),
        }.get(self.limit, "")

    def end(self, spec: Spec, status: int, record: journal.Record) -> End:
        """Its end, from the wait status and what it left."""
        stack = tail(self.room / "stack", 1 << 16)
        frame = crash.guilty(stack)
        return End(
            status if self.limit else crash.fatal_signal(status, stack) or status,
            self.limit,
            self.allowed(spec),
            record.doing,
            tail(self.room / "log"),
            stack,
            str(frame) if frame else "",
        )
