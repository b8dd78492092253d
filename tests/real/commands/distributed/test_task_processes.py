"""The processes of tasks end when nobody waits for their task, and run again when somebody waits again."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from builder.commands.distributed.protocol import Answer
from builder.commands.distributed.worker import service
from builder.commands.distributed.worker.child import Work
from builder.commands.distributed.worker.service import TaskProcesses
from tests.conftest import PATIENCE, wait_until

#: Stands for the program that runs a task: it notes its start, waits while a file exists, and answers. Another file
#: delays the effect of SIGTERM.
PROGRAM = """\
import os, signal, sys, time
from multiprocessing.connection import Connection
from builder.commands.distributed.protocol import Answer
channel, folder = Connection(int(sys.argv[2])), sys.argv[1]
def end(number, frame):
    while os.path.exists(folder + "/ending"):
        time.sleep(0.02)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, end)
channel.recv()
channel.send(("stage", "started"))
while os.path.exists(folder + "/hold"):
    time.sleep(0.02)
channel.send(Answer(machine="answered"))
"""


class Run:
    """A task that runs in a thread, as in a Dask worker."""

    def __init__(self, folder: Path) -> None:
        self.processes = TaskProcesses((sys.executable, "-c", PROGRAM, str(folder)))
        self.stages: list[str] = []
        self.result: tuple[Answer | None, int] | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.result = self.processes.run("key", cast("Work", "work"), self.stages.append, lambda _: None)

    def started(self, times: int) -> None:
        """Wait until the process has started so many times."""
        wait_until(lambda: len(self.stages) >= times, f"start {times}")

    def ended(self) -> None:
        """Wait until the thread has ended."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def test_a_task_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    run = Run(tmp_path)
    run.thread.start()
    run.started(1)
    run.processes.end("key")
    run.ended()
    assert run.result == (None, -15)


def test_a_task_is_ended_also_when_its_process_has_not_started_yet(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    run = Run(tmp_path)
    run.processes.end("key")
    run.thread.start()
    run.ended()
    assert run.result == (None, -15)


def test_a_task_that_is_wanted_again_while_it_ends_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SECONDS_TO_END", PATIENCE)
    (tmp_path / "hold").touch()
    (tmp_path / "ending").touch()
    run = Run(tmp_path)
    run.thread.start()
    run.started(1)
    run.processes.end("key")
    run.processes.want("key")
    (tmp_path / "ending").unlink()
    run.started(2)
    (tmp_path / "hold").unlink()
    run.ended()
    assert run.result == (Answer(machine="answered"), 0)


def test_an_earlier_end_does_not_end_the_next_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.processes.end("key")
    run.processes.want("key")
    run.thread.start()
    run.ended()
    assert run.result == (Answer(machine="answered"), 0)
