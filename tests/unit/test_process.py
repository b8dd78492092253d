"""Programs of a build: logged, ended with the farm, recognised after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from builder import process


def test_output_and_command_go_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    status = process.run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log=log, job="demo")
    assert status == 3
    assert "hello" in log.read_text()
    assert log.read_text().startswith("+ ")


def test_orphans_are_known_by_their_job_and_no_other_is_touched() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine = subprocess.Popen(sleep, env={process.JOB_VARIABLE: "digest-1"})
    other = subprocess.Popen(sleep, env={process.JOB_VARIABLE: "digest-12"})
    try:
        time.sleep(0.2)
        assert process.reap_orphans("digest-1") == [mine.pid]
        assert mine.wait(5) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_end_kills_what_runs_with_its_children_and_starts_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_ending", threading.Event())
    started = tmp_path / "child"
    child = f"import time, pathlib; pathlib.Path({str(started)!r}).touch(); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(process.run([sys.executable, "-c", parent], log=tmp_path / "log", job="family"))
        except process.Interrupted:
            outcome.append("interrupted")

    worker = threading.Thread(target=work)
    worker.start()
    while not started.exists():
        time.sleep(0.02)
    process.end_all()
    worker.join(5)
    assert outcome == ["interrupted"]
    time.sleep(0.1)
    assert process.reap_orphans("family") == []
    with pytest.raises(process.Interrupted):
        process.run(["true"], log=tmp_path / "log", job="late")


def test_an_interrupt_while_it_waits_takes_the_program_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        del timeout
        started.append(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            process.run(["sleep", "60"], log=tmp_path / "log", job="interrupted")
    assert started[0].wait(5) == -signal.SIGKILL
