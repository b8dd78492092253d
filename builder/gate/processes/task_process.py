"""The process that runs tasks, from the scheduler's side: its start, its limits, and how it ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.gate.amounts import size_text
from builder.gate.outcome import Spec
from builder.gate.processes.journal import JOURNAL, LOG, STACK, TaskRecord, new_key, read
from builder.gate.processes.spawn import ForkServerProcess
from builder.gate.system import crash, rlimits
from builder.gate.system.exit_status import ProcessExit, tail
from builder.gate.system.process_tree import is_stopped, listed_descendants
from builder.gate.tasks import SEND, Task

#: Bytes of output after which a process is killed, so that its log cannot fill the disk.
OUTPUT_BYTES = 64 << 20
#: Processes of a task at the same time, its own included.
MOST_PROCESSES = 256
#: The part of the time limit after which a process with several cases begins no further case.
_ENOUGH = 0.25
#: Seconds that importing torch and the extension may take, from a cold disk.
IMPORT_SECONDS = 180.0
_GRACE = 0.3  # seconds between the signal to write the stack and SIGKILL
_PATIENCE = 3.0  # seconds after SIGKILL in which a server must report the end of the task


@dataclass
class TaskProcess:
    """A process that runs tasks of one check, one after another."""

    spec: Spec
    #: The number that names it in the events of the server.
    number: int
    tasks: Sequence[Task]
    #: The fork server that forks it.
    server: ForkServerProcess
    #: Its directory, which contains journal, log and stack.
    task_dir: Path
    #: The key of its journal.
    key: bytes = field(default_factory=new_key)
    #: Start by the monotonic clock, in seconds.
    began: float = field(default_factory=time.monotonic)
    #: Its process id, 0 until the fork server has sent it.
    pid: int = 0
    #: Bytes of memory of the fork server when it forked the process.
    base: int = 0
    #: The limit the process is being killed for: "time", "memory", "processes", "output", "stopped" or "".
    limit: str = ""
    #: When killing began, by the monotonic clock; 0 if not.
    killed: float = 0.0
    #: Its wait status and the content of its journal, when it has ended.
    status: int = 0
    record: TaskRecord = field(default_factory=TaskRecord)

    @property
    def task(self) -> Task:
        """The first task, which is the only one of most processes."""
        return self.tasks[0]

    @property
    def seconds(self) -> float:
        """The time limit."""
        return self.spec.seconds * self.task.check.time_factor

    def start(self) -> None:
        """Let the fork server start it."""
        if self.task.phase == SEND:
            self.task.data = self.task_dir / "results"
        self.server.send_command(
            self.key,
            fork=self.number,
            check=self.task.check.name,
            function=self.task.function(),
            cases=[one.case.number for one in self.tasks if one.case],
            seconds=self.seconds * _ENOUGH,
            device=self.task.device,
            # CUDA reserves terabytes of address space, so for CUDA only the memory in use is limited.
            memory=0 if self.task.device == "cuda" else self.spec.memory,
            task_dir=str(self.task_dir),
            data=[str(one.data or "") for one in self.tasks],
        )

    def started(self, pid: int) -> None:
        """Record that it runs."""
        self.pid, self.began = pid, time.monotonic()
        self.base = rlimits.resident(self.server.pid) or 0

    def ended(self, status: int) -> None:
        """Record how it has ended, and what it has written to its journal."""
        self.status, self.record = status, read(self.task_dir / JOURNAL, self.key)

    def exceeded(self, now: float) -> str:
        """Return the limit that it exceeds now, or ""; a server that is stopped never starts it."""
        if now - self.began > self.seconds:
            return "time"
        if self.pid and is_stopped(self.pid):
            return "stopped"
        below = listed_descendants(self.pid) if self.pid else []
        if len(below) >= MOST_PROCESSES:
            return "processes"
        used = rlimits.shared_out([self.pid, *below]) if below else 0
        if self.pid and max(used, rlimits.resident(self.pid) or 0) > self.base + self.spec.memory:
            return "memory"
        return "output" if self.prints_too_much() else ""

    def prints_too_much(self) -> bool:
        """Whether its log is larger than OUTPUT_BYTES."""
        try:
            return (self.task_dir / LOG).stat().st_size > OUTPUT_BYTES
        except OSError:
            return False

    def process_exit(self) -> ProcessExit:
        """Return how it ended, from its wait status and the files it left."""
        allowed = {
            "time": f"{self.seconds:g} s",
            "memory": size_text(self.spec.memory),
            "processes": str(MOST_PROCESSES),
            "output": size_text(OUTPUT_BYTES),
        }
        stack = tail(self.task_dir / STACK, 1 << 16)
        return ProcessExit(
            self.status if self.limit else crash.fatal_signal(self.status, stack) or self.status,
            self.limit,
            allowed.get(self.limit, ""),
            self.record.step,
            tail(self.task_dir / LOG),
            stack,
            str(crash.crash_frame(stack) or ""),
        )


def enforce(running: Iterable[TaskProcess], servers: Sequence[ForkServerProcess]) -> Iterator[ForkServerProcess]:
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
    for one in running:
        if not one.killed:
            one.limit = one.exceeded(now)
            if one.limit:
                one.server.send_command(kill=one.number, signal=signal.SIGUSR1)  # faulthandler writes the stack
                one.killed = now
        elif now - one.killed > _GRACE + _PATIENCE:
            one.server.kill()
        elif now - one.killed > _GRACE:
            one.server.send_command(kill=one.number, signal=signal.SIGKILL)
