"""Running programs: logs, interrupts, and orphans of a killed run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from builder import process
from tests.conftest import lacking

#: A constant that takes a compiler minutes to compute.
ENDLESS = (
    "constexpr long sum() { long s = 0; for (long i = 0; i < 90000000000; ++i) s += i % 7; return s; }\n"
    "static_assert(sum() != 1);\n"
)
NINJA = """\
rule cxx
  command = g++ -std=c++17 -fconstexpr-ops-limit=999999999999 -fconstexpr-loop-limit=2147483647 -c $in -o $out
build a.o: cxx a.cpp
build b.o: cxx b.cpp
"""


def descendants_named(program: str, folder: Path) -> list[int]:
    """The processes of a program that work in a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder and (link.parent / "comm").read_text().strip() == program:
                found.append(int(link.parent.name))
    return found


def test_output_and_command_go_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    status = process.run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log=log, owner="demo")
    assert status == 3
    assert "hello" in log.read_text()
    assert log.read_text().startswith("+ ")


def test_orphans_of_one_owner_are_killed_and_no_others() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine = subprocess.Popen(sleep, env={process.OWNER_VARIABLE: "digest-1"})
    other = subprocess.Popen(sleep, env={process.OWNER_VARIABLE: "digest-12"})
    try:
        time.sleep(0.2)
        assert process.kill_orphans("digest-1") == [mine.pid]
        assert mine.wait(5) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_kill_all_kills_process_groups_and_nothing_starts_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_stopping", threading.Event())
    started = tmp_path / "child"
    child = f"import time, pathlib; pathlib.Path({str(started)!r}).touch(); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(process.run([sys.executable, "-c", parent], log=tmp_path / "log", owner=str(tmp_path)))
        except process.Interrupted:
            outcome.append("interrupted")

    worker = threading.Thread(target=work)
    worker.start()
    while not started.exists():
        time.sleep(0.02)
    process.kill_all()
    worker.join(5)
    assert outcome == ["interrupted"]
    time.sleep(0.1)
    assert process.kill_orphans(str(tmp_path)) == []
    with pytest.raises(process.Interrupted):
        process.run(["true"], log=tmp_path / "log", owner="late")


def test_an_interrupt_during_the_wait_kills_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(*_: object) -> list[str]:
        started.extend(process._running)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sleep", "60"], log=tmp_path / "log", owner=str(tmp_path))
    (keeper,) = started
    assert not Path(f"/proc/{keeper}").exists()


TWO_SIGNALS = """
import signal, threading, time
from pathlib import Path
from builder import process
from builder.process import handle_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
handle_signals()
program = threading.Thread(
    target=process.run, args=(["sleep", "60"],), kwargs={"log": Path("log"), "owner": "two signals"}, daemon=True
)
program.start()
try:
    while True:
        time.sleep(0.05)
        if process._running:
            print("running", flush=True)
except KeyboardInterrupt:
    time.sleep(0.5)  # the second signal arrives before the program is killed
    process.kill_all()
    program.join(5)
    print("ended", not program.is_alive(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_interrupt_the_end_of_a_run(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_SIGNALS], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "running\n"
        run.send_signal(number)
        time.sleep(0.1)
        run.send_signal(number)
        assert run.stdout.read().splitlines()[-1:] == ["ended True"]


@pytest.mark.parametrize("ending", ["kill_all", "killed keeper"])
def test_no_compiler_outlives_a_run_that_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """ninja starts each command in a process group of its own, so killing its own group leaves the compilers."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for tool in ("ninja", "g++"):
        if not shutil.which(tool):
            lacking(f"{tool} is not on PATH")
    monkeypatch.setattr(process, "_stopping", threading.Event())
    (tmp_path / "build.ninja").write_text(NINJA)
    for name in ("a.cpp", "b.cpp"):
        (tmp_path / name).write_text(ENDLESS)
    ended: list[object] = []

    def work() -> None:
        try:
            argv = ["sh", "-c", "ninja -j 2; true"]
            ended.append(process.run(argv, log=tmp_path / "log", owner=str(tmp_path), cwd=tmp_path))
        except process.Interrupted:
            ended.append("interrupted")

    worker = threading.Thread(target=work)
    worker.start()
    deadline = time.monotonic() + 30
    while len(descendants_named("cc1plus", tmp_path)) < 2:
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.05)
    if ending == "kill_all":
        process.kill_all()
    else:
        (keeper,) = process._running
        os.kill(keeper, signal.SIGKILL)
    worker.join(10)
    assert ended == ["interrupted" if ending == "kill_all" else -signal.SIGKILL]
    time.sleep(0.2)
    assert descendants_named("cc1plus", tmp_path) == []
