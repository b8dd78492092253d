"""Facts of the system: sizes, files that may have been replaced, how processes end, and their limits."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import builder
from builder.gate.amounts import size_text
from builder.gate.system import rlimits
from builder.gate.system.exit_status import ProcessExit, tail
from builder.gate.system.files import mapped_files, read_regular
from tests.conftest import PATIENCE, is_running, wait_until

ROOT = str(Path(builder.__file__).parents[1])


@pytest.mark.parametrize(
    ("size", "text"),
    [(5, "5 bytes"), (484 << 10, "484 KiB"), (4 << 20, "4.0 MiB"), (2**30 - 1, "1024.0 MiB"), (100 << 30, "100.0 GiB")],
)
def test_a_size_as_text(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_mapped_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "with a space.so"
    path.write_bytes(b"x")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert str(path) in mapped_files()
    assert str(path) not in mapped_files()


def test_the_start_or_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 4) == b"0123"
    assert read_regular(tmp_path / "file", 4, end=True) == b"6789"
    tracemalloc.start()
    assert read_regular(tmp_path / "file", 4 << 30, end=True) == b"0123456789"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20, "a large limit takes no memory"
    tracemalloc.stop()
    assert tail(tmp_path / "missing") == ""
    (tmp_path / "log").write_bytes(b"\xff" * 10 + b"end")
    assert tail(tmp_path / "log", 4) == "\ufffdend"


def test_pipes_devices_and_links_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "other").symlink_to(tmp_path / "file")
    for name in ("pipe", "link", "other", "missing"):
        with pytest.raises(OSError):  # noqa: PT011 (the kernel's message)
            read_regular(tmp_path / name, 10)


THROWS = "terminate called after throwing an instance of"


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ProcessExit(signal.SIGSEGV, frame="f of lib.so"), "dies with SIGSEGV (a segmentation fault) in f of lib.so"),
        (ProcessExit(signal.SIGABRT), "dies with SIGABRT (abort())"),
        (ProcessExit(signal.SIGABRT, log="free(): invalid pointer\n"), "glibc aborts with 'free(): invalid pointer'"),
        (ProcessExit(signal.SIGABRT, log="double free or corruption (out)\n"), "'double free or corruption (out)'"),
        (
            ProcessExit(signal.SIGABRT, log=f"{THROWS} 'std::bad_alloc'\n  what():  x\n"),
            "allocates more memory than allowed and does not catch std::bad_alloc",
        ),
        (
            ProcessExit(signal.SIGABRT, log=f"{THROWS} 'Oops'\n  what():  too late\n"),
            "dies of an uncaught C++ exception: Oops (too late)",
        ),
        (ProcessExit(signal.SIGKILL), "killed by the kernel when memory ran out"),
        (ProcessExit(40), "dies with signal 40"),
    ],
)
def test_the_end_of_a_process_is_a_sentence(end: ProcessExit, text: str) -> None:
    assert text in end.sentence()


def test_evidence_has_the_innermost_python_frame() -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "/a/op.py", line 7 in call\n  File "/b.py", line 1 in x\n'
    evidence = ProcessExit(signal.SIGSEGV, stack=stack, log="hello").evidence()
    assert evidence == {"signal": "SIGSEGV", "stack": stack, "frame": "/a/op.py:7 in call", "printed": "hello"}


def python(code: str) -> str:
    """What a new Python prints."""
    head = f"import sys; sys.path.insert(0, {ROOT!r}); from builder.gate.system import rlimits\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False).stdout


def test_memory_is_limited_until_the_limit_is_removed() -> None:
    refused = "rlimits.limit_added_memory(64 << 20)\ntry: bytearray(100 << 30)\nexcept MemoryError: print('refused')\n"
    assert python(refused) == "refused\n"
    assert python("rlimits.limit_added_memory(256 << 20)\nprint(len(bytearray(64 << 20)))") == f"{64 << 20}\n"
    removed = "rlimits.limit_added_memory(16 << 20)\nrlimits.remove_memory_limit()\nprint(len(bytearray(64 << 20)))"
    assert python(removed) == f"{64 << 20}\n"


def test_a_process_dies_with_its_parent() -> None:
    code = (
        "import os, time\nparent = os.getpid()\nreader, writer = os.pipe()\npid = os.fork()\n"
        "if pid == 0:\n    rlimits.exit_with_parent(parent)\n    os.close(1)\n    os.close(2)\n"
        "    os.write(writer, b'1')\n    time.sleep(600)\n"
        "os.read(reader, 1)\nprint(pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    pid = int(python(code))  # the child has closed the pipe that this reads
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
