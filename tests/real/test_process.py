"""What a program leaves behind ends with it, whatever it does."""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from builder import process
from builder.process import Limits
from tests.conftest import wait_until

#: Starts a process in a new session, below init, with no environment, which holds a lock while it runs.
SURVIVOR = """
import os, sys, time
alive = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = f"import fcntl, os, time; held = open({alive + '.lock'!r}, 'w'); fcntl.flock(held, fcntl.LOCK_EX)"
        code += f"; open({alive!r}, 'w').close(); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
    os._exit(0)
while not os.path.exists(alive):
    time.sleep(0.01)
HOW
"""


def survives(alive: Path) -> bool:
    """Whether the process runs that holds the lock."""
    with alive.with_name("alive.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


ENDINGS = {
    "exits": "",
    "is killed": "os.kill(os.getpid(), 9)",
    "kills its keeper": "os.kill(int(open('/proc/self/stat').read().split()[3]), 9); time.sleep(600)",
    "stops its keeper": "os.kill(int(open('/proc/self/stat').read().split()[3]), 19); time.sleep(600)",
    "hangs": "time.sleep(600)",
    "starts many processes": "[os.fork() or time.sleep(600) for _ in range(300)]; time.sleep(600)",
}

REASONS = {
    "kills its keeper": "killed or stopped the process of buildfarm that started it",
    "stops its keeper": "killed or stopped the process of buildfarm that started it",
    "hangs": "did not finish within ",
    "starts many processes": "had more than 200 processes at the same time",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_no_process_of_a_program_outlives_it(how: str, tmp_path: Path) -> None:
    alive, log = tmp_path / "alive", tmp_path / "log"
    argv = [sys.executable, "-c", SURVIVOR.replace("HOW", ENDINGS[how]), str(alive)]
    for seconds in (3, 20, 120) if how == "hangs" else (600,):  # a slow machine starts three Pythons in more than 3 s
        began = time.monotonic()
        limits = Limits(seconds=seconds, processes=200)
        status = process.run(argv, log=log, owner=f"survivor {tmp_path}", limits=limits)
        assert time.monotonic() - began < 300, "the program sleeps for 600 s"
        assert status == (0 if how == "exits" else -9)
        if alive.exists():
            break
    assert alive.exists()
    assert not survives(alive)
    assert REASONS.get(how, "+ ") in " ".join(log.read_text().split())


def test_processes_end_when_buildfarm_is_killed(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    argv = [sys.executable, "-c", SURVIVOR.replace("HOW", "time.sleep(600)"), str(alive)]
    pid = os.fork()
    if pid == 0:
        process.run(argv, log=tmp_path / "log", owner=f"survivor {tmp_path}")
        os._exit(0)
    try:
        wait_until(alive.exists, "the process that may not survive")
        assert survives(alive)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    wait_until(lambda: not survives(alive), "the end of that process")


def test_a_file_has_a_limit_of_size(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'large')!r}, 'wb').truncate(2 << 20)"
    limits = Limits(file_bytes=1 << 20)
    assert process.run([sys.executable, "-c", code], log=tmp_path / "log", owner="large", limits=limits) == 1
    assert "File too large" in (tmp_path / "log").read_text()


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        process.run(["no-such-program"], log=tmp_path / "log", owner="none")
    with pytest.raises(FileNotFoundError):
        process.run(["true"], log=tmp_path / "log", owner="none", cwd=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["PIPE", "XFSZ"])
def test_signals_that_python_ignores_are_not_ignored_in_a_program(name: str, tmp_path: Path) -> None:
    argv = ["sh", "-c", f"ulimit -c 0; kill -{name} $$"]
    assert process.run(argv, log=tmp_path / "log", owner="signals") == -signal.Signals[f"SIG{name}"]
