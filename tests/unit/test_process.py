"""Running programs: logs, interrupts, and orphans of a killed run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from builder import process
from tests.conftest import PATIENCE, owned, wait_until


def test_output_and_command_go_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    status = process.run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log=log, owner="demo")
    assert status == 3
    assert "hello" in log.read_text()
    assert log.read_text().startswith("+ ")


def test_orphans_of_one_owner_are_killed_and_no_others() -> None:
    owner = uuid.uuid4().hex
    longer = f"{owner}2"
    echo = [sys.executable, "-c", "print(input())"]
    mine, other = (
        subprocess.Popen(
            echo, env={process.OWNER_VARIABLE: each}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for each in (owner, longer)
    )
    with mine, other:
        try:
            # A process has its environment a moment after its start.
            wait_until(lambda: owned(owner) == [mine.pid] and owned(longer) == [other.pid], "two processes with owners")
            assert process.kill_orphans(owner) == [mine.pid]
            assert mine.wait(PATIENCE) == -9
            assert other.communicate("alive\n", timeout=PATIENCE)[0] == "alive\n"
        finally:
            mine.kill()
            other.kill()


def test_kill_all_kills_process_groups_and_nothing_starts_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_stopping", threading.Event())
    started = tmp_path / "child"
    child = f"import time, pathlib; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(process.run([sys.executable, "-c", parent], log=tmp_path / "log", owner=str(tmp_path)))
        except process.Interrupted:
            outcome.append("interrupted")

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(started.exists, "the start of the child")
    assert len(owned(str(tmp_path))) > 1
    process.kill_all()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert outcome == ["interrupted"]
    wait_until(lambda: not owned(str(tmp_path)), "the end of all processes")
    with pytest.raises(process.Interrupted):
        process.run(["true"], log=tmp_path / "log", owner="late")


def test_an_interrupt_during_the_wait_kills_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(*_: object) -> list[str]:
        started.extend(process._running)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sleep", "600"], log=tmp_path / "log", owner=str(tmp_path))
    (keeper,) = started
    assert not Path(f"/proc/{keeper}").exists()


TWO_SIGNALS = """
import signal, sys, threading, time
from pathlib import Path
from builder import process
from builder.process import handle_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
process.SECONDS_TO_STOP = 600
handle_signals()
options = {"log": Path("log"), "owner": str(Path.cwd())}
program = threading.Thread(target=process.run, args=(["sleep", "600"],), kwargs=options, daemon=True)
program.start()
try:
    for _ in range(2400):
        if process._running:
            print("running", flush=True)
            break
        time.sleep(0.05)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()  # the second signal arrives before the program is killed
    process.kill_all()
    program.join(120)
    print("ended", not program.is_alive(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_interrupt_the_end_of_a_run(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_SIGNALS],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "running\n"
            run.send_signal(number)
            assert run.stdout.readline() == "interrupted\n"
            run.send_signal(number)
            out, _ = run.communicate("\n", timeout=2 * PATIENCE)
            assert out == "ended True\n"
        finally:
            run.kill()
