"""What a program leaves behind ends with it, whatever it does to stay alive."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from builder import process
from builder.gate.system.process_tree import descendants
from builder.process import Limits

#: Starts a process in a new session, below init, with no environment, which rewrites a proof after a second.
SURVIVOR = """
import os, sys, time
alive, proof = sys.argv[1:]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = f"import time, pathlib; pathlib.Path({alive!r}).touch(); time.sleep(1)"
        code += f"\\nwhile True: pathlib.Path({proof!r}).write_text('forged'); time.sleep(0.01)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
    os._exit(0)
while not os.path.exists(alive):
    time.sleep(0.01)
HOW
"""

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
    "hangs": "did not finish within 3 s",
    "starts many processes": "had more than 200 processes at the same time",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_no_process_of_a_program_outlives_it(how: str, tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    proof.write_text("true")
    code = SURVIVOR.replace("HOW", ENDINGS[how])
    argv = [sys.executable, "-c", code, str(tmp_path / "alive"), str(proof)]
    limits = Limits(seconds=3 if how == "hangs" else 60, processes=200)
    began = time.monotonic()
    status = process.run(argv, log=tmp_path / "log", owner=f"survivor {tmp_path}", limits=limits)
    assert time.monotonic() - began < 30
    assert status == (0 if how == "exits" else -9)
    assert (tmp_path / "alive").exists()
    written = proof.read_text()
    time.sleep(1.5)
    assert proof.read_text() == written
    assert [pid for pid in descendants(os.getpid()) if "forged" in command_of(pid)] == []
    assert REASONS.get(how, "+ ") in " ".join((tmp_path / "log").read_text().split())


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_processes_end_when_buildfarm_is_killed(tmp_path: Path) -> None:
    proof, alive = tmp_path / "proof.json", tmp_path / "alive"
    proof.write_text("true")
    code = SURVIVOR.replace("HOW", "time.sleep(600)")
    argv = [sys.executable, "-c", code, str(alive), str(proof)]
    pid = os.fork()
    if pid == 0:
        process.run(argv, log=tmp_path / "log", owner=f"survivor {tmp_path}")
        os._exit(0)
    while not alive.exists():
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    time.sleep(1.5)
    assert proof.read_text() == "true"


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
