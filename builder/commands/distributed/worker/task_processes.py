"""The processes in which a worker runs its tasks: each ends when nobody waits for its task any more."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from builder.commands.distributed.protocol import Answer
from builder.commands.distributed.worker.child import Work

#: Seconds that a task's process has to end its programs after SIGTERM.
SECONDS_TO_END = 15.0
#: The program, without the number of its socket.
PROGRAM = (sys.executable, "-m", "builder.commands.distributed.worker.child")


@dataclass
class _Running:
    """A process, and whether it was told to end."""

    process: subprocess.Popen[bytes]
    ended: bool = False

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not help."""
        self.ended = True
        self.process.terminate()
        timer = threading.Timer(SECONDS_TO_END, self.process.kill)
        timer.daemon = True
        timer.start()


class TaskProcesses:
    """The running processes by the Dask key of their task. Dask's event loop and the threads of tasks share this."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._unwanted: set[str] = set()

    def want(self, key: str) -> None:
        """Note that somebody waits for this task, for the first time or again."""
        with self._lock:
            self._unwanted.discard(key)

    def end(self, key: str) -> None:
        """Note that nobody waits for this task, and end its process: now, or as soon as it is started."""
        with self._lock:
            self._unwanted.add(key)
            if running := self._running.get(key):
                running.end()

    def end_all(self) -> None:
        """End every process."""
        for key in list(self._running):
            self.end(key)

    def run(
        self, key: str, work: Work, on_stage: Callable[[str], None], on_answer: Callable[[Answer], None]
    ) -> tuple[Answer | None, int]:
        """Run a task; return its answer, or None if the process ended without one, and the exit status.

        `on_answer` gets the answer before the process ends.

        A client may ask for a task again while the process that was told to end still runs. Dask takes the answer of
        the first run then, so the task runs again here.
        """
        while True:
            answer, status, ended = self._run_once(key, work, on_stage, on_answer)
            with self._lock:
                if answer is None and ended and key not in self._unwanted:
                    continue
                self._unwanted.discard(key)
            return answer, status

    def _run_once(
        self, key: str, work: Work, on_stage: Callable[[str], None], on_answer: Callable[[Answer], None]
    ) -> tuple[Answer | None, int, bool]:
        """The answer and the exit status of one process, and whether this worker ended the process."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            argv = [*self._program, str(theirs.fileno())]
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )
            self._running[key] = running = _Running(process)
            if key in self._unwanted:
                running.end()
        answer: Answer | None = None
        try:
            with Connection(ours.detach()) as channel, suppress(EOFError, OSError):
                channel.send(work)
                while not isinstance(message := channel.recv(), Answer):
                    on_stage(message[1])
                answer = message
                on_answer(answer)
            status = process.wait()
        finally:
            with self._lock:
                del self._running[key]
        return answer, status, running.ended
