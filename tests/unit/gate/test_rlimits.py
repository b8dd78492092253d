"""Limits of a process, tested in child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

import builder
from builder.gate.system import rlimits
from tests.conftest import PATIENCE, is_running, wait_until

ROOT = str(Path(builder.__file__).parents[1])


def python(code: str) -> subprocess.CompletedProcess[str]:
    head = f"import sys; sys.path.insert(0, {ROOT!r}); from builder.gate.system import rlimits\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False)


def test_memory_beyond_the_limit_raises_memory_error() -> None:
    code = "rlimits.limit_added_memory(64 << 20)\ntry: bytearray(100 << 30)\nexcept MemoryError: print('refused')\n"
    assert python(code).stdout == "refused\n"


def test_memory_within_the_limit_is_allocated() -> None:
    assert python("rlimits.limit_added_memory(256 << 20)\nprint(len(bytearray(64 << 20)))").stdout == f"{64 << 20}\n"


def test_a_limit_can_be_removed() -> None:
    code = "rlimits.limit_added_memory(16 << 20)\nrlimits.remove_memory_limit()\nprint(len(bytearray(64 << 20)))"
    assert python(code).stdout == f"{64 << 20}\n"


def test_a_process_dies_with_its_parent() -> None:
    code = (
        "import os, time\nparent = os.getpid()\nreader, writer = os.pipe()\npid = os.fork()\n"
        "if pid == 0:\n    rlimits.exit_with_parent(parent)\n    os.close(1)\n    os.close(2)\n"
        "    os.write(writer, b'1')\n    time.sleep(600)\n"
        "os.read(reader, 1)\nprint(pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    pid = int(python(code).stdout)  # the child has closed the pipe that this reads
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(pid)
        wait_until(lambda: not is_running(child), "the end of the child")


def test_threads_and_memory_of_a_process() -> None:
    own = os.getpid()
    assert rlimits.threads(own) >= 1
    assert (rlimits.resident(own) or 0) > 1 << 20
    assert rlimits.resident(1 << 30) is None


def test_killing_a_group_that_has_ended_is_no_error() -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    rlimits.kill_group(child.pid)
    assert child.wait(PATIENCE) == -signal.SIGKILL
    rlimits.kill_group(child.pid)
