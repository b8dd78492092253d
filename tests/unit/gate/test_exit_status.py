"""How the end of a process is described."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from builder.gate.system.exit_status import ProcessExit, tail


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ProcessExit(signal.SIGSEGV, step="float16"), "dies with SIGSEGV (a segmentation fault) (step: float16)"),
        (ProcessExit(signal.SIGSEGV, frame="f of lib.so"), "dies with SIGSEGV (a segmentation fault) in f of lib.so"),
        (ProcessExit(signal.SIGABRT), "dies with SIGABRT (abort())"),
        (ProcessExit(signal.SIGABRT, log="free(): invalid pointer\n"), "glibc aborts with 'free(): invalid pointer'"),
        (ProcessExit(signal.SIGABRT, log="double free or corruption (out)\n"), "'double free or corruption (out)'"),
        (
            ProcessExit(
                signal.SIGABRT, log="terminate called after throwing an instance of 'std::bad_alloc'\n  what():  x\n"
            ),
            "allocates more memory than allowed and does not catch std::bad_alloc",
        ),
        (
            ProcessExit(
                signal.SIGABRT, log="terminate called after throwing an instance of 'Oops'\n  what():  too late\n"
            ),
            "dies of an uncaught C++ exception: Oops (too late)",
        ),
        (ProcessExit(3 << 8), "calls exit(3)"),
        (ProcessExit(signal.SIGKILL, "time", "60 s"), "does not end within 60 s"),
        (ProcessExit(signal.SIGKILL, "memory", "4.0 GiB"), "uses more than 4.0 GiB of memory"),
        (ProcessExit(signal.SIGKILL), "killed by the kernel when memory ran out"),
        (ProcessExit(40), "dies with signal 40"),
    ],
)
def test_sentence(end: ProcessExit, text: str) -> None:
    assert text in end.sentence()


def test_evidence_has_the_innermost_python_frame() -> None:
    stack = (
        'Current thread 0x1 (most recent call first):\n  File "/a/op.py", line 7 in call\n  File "/b.py", line 1 in x\n'
    )
    evidence = ProcessExit(signal.SIGSEGV, stack=stack, log="hello").evidence()
    assert evidence["frame"] == "/a/op.py:7 in call"
    assert (evidence["signal"], evidence["printed"]) == ("SIGSEGV", "hello")


def test_tail_of_a_missing_and_a_binary_file(tmp_path: Path) -> None:
    assert tail(tmp_path / "missing") == ""
    (tmp_path / "log").write_bytes(b"\xff" * 10 + b"end")
    assert tail(tmp_path / "log", 4) == "\ufffdend"
