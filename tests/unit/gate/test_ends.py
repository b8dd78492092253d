"""How the end of a process is told."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from builder.gate.ends import End, amount, tail


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (End(signal.SIGSEGV, doing="float16"), "dies with SIGSEGV (a segmentation fault), at: float16"),
        (End(signal.SIGSEGV, frame="f of lib.so"), "dies with SIGSEGV (a segmentation fault) in f of lib.so"),
        (End(signal.SIGABRT), "dies with SIGABRT (abort())"),
        (End(signal.SIGABRT, log="free(): invalid pointer\n"), "glibc stops it with 'free(): invalid pointer'"),
        (End(signal.SIGABRT, log="double free or corruption (out)\n"), "'double free or corruption (out)'"),
        (
            End(signal.SIGABRT, log="terminate called after throwing an instance of 'std::bad_alloc'\n  what():  x\n"),
            "asks for more memory than allowed",
        ),
        (
            End(signal.SIGABRT, log="terminate called after throwing an instance of 'Oops'\n  what():  too late\n"),
            "a C++ exception that nobody catches: Oops (too late)",
        ),
        (End(3 << 8), "exit status 3"),
        (End(signal.SIGKILL, "time", "60 s"), "does not end within 60 s"),
        (End(signal.SIGKILL, "memory", "4.0 GiB"), "takes more memory than the 4.0 GiB allowed"),
        (End(signal.SIGKILL), "killed by the kernel where memory ran out"),
        (End(40), "dies with signal 40"),
    ],
)
def test_sentence(end: End, said: str) -> None:
    assert said in end.sentence()


def test_evidence_has_the_innermost_python_frame() -> None:
    stack = (
        'Current thread 0x1 (most recent call first):\n  File "/a/op.py", line 7 in call\n  File "/b.py", line 1 in x\n'
    )
    evidence = End(signal.SIGSEGV, stack=stack, log="hello").evidence()
    assert evidence["frame"] == "/a/op.py:7 in call"
    assert (evidence["signal"], evidence["printed"]) == ("SIGSEGV", "hello")


def test_tail_of_anything(tmp_path: Path) -> None:
    assert tail(tmp_path / "missing") == ""
    (tmp_path / "log").write_bytes(b"\xff" * 10 + b"end")
    assert tail(tmp_path / "log", 4) == "\ufffdend"


@pytest.mark.parametrize(("number", "said"), [(5, "5 bytes"), (4 << 20, "4 MiB"), (100 << 30, "100.0 GiB")])
def test_amount(number: int, said: str) -> None:
    assert amount(number) == said
