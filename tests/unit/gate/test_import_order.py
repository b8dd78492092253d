"""The outcome that follows from the runs of import orders; the runs themselves are in tests/full."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.gate.imports.launcher import Launcher
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.import_order import OrderRun, _judged, allowed_order, orders_of
from tests.conftest import PATIENCE

NAMES = ("torch", "toy")


def judged(*called: str, printed: str = "") -> Outcome:
    """The outcome of orders that all succeed, each with the op that returned."""
    runs = [
        OrderRun(order, 0, f"{printed}\nbuildfarm-called {op}\n", "")
        for order, op in zip((NAMES, NAMES[::-1]), called, strict=True)
    ]
    return _judged(Spec("toy", ["toy"], has_cases=any(called)), Path(), NAMES, runs, 2.0)


def test_orders_that_call_the_same_op_pass_whatever_an_import_prints() -> None:
    assert judged("toy::op", "toy::op", printed="apex not found").verdict == PASSED
    none = judged("", "", printed="hello")
    assert (none.verdict, none.reason.partition("; ")[2]) == (NOT_RUN, "no case could be called after them")


def test_an_op_that_returns_in_only_one_order_fails() -> None:
    found = judged("toy::op", "")
    assert found.verdict == FAILED
    assert found.reason.startswith("the import order changes which ops work.")
    assert "After toy, torch: every op raises an exception. After torch, toy: toy::op is the first" in found.reason
    assert found.reason.endswith("call in each the first case of toy::op")


LIBC10 = "ImportError: libc10.so: cannot open shared object file: No such file or directory"
TWICE = "RuntimeError: Only a single TORCH_LIBRARY can be used to register the namespace _C; please put all of your"
GOOD = OrderRun(NAMES, 0, "\nbuildfarm-called toy::op\n", "")


def raises(order: tuple[str, ...], error: str) -> OrderRun:
    trace = f"buildfarm-step import toy\nTraceback (most recent call last):\n  File x\n{error}\nmore text\n"
    return OrderRun(order, 1 << 8, "", trace)


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        pytest.param(
            [OrderRun(NAMES, -6 << 8, "", "buildfarm-step import torch\n", "time")],
            ["does not end within 180 s"],
            id="three times the limit of a case",
        ),
        pytest.param(
            [GOOD, raises(NAMES[::-1], LIBC10)],
            [LIBC10, "only if torch is not imported before toy", "`needs_first: [torch]`"],
            id="a module that imports only after torch",
        ),
        pytest.param(
            [raises(NAMES, TWICE)],
            ["two libraries have `TORCH_LIBRARY(_C, m)`; rename the namespace in one"],
            id="one namespace in two libraries",
        ),
    ],
)
def test_an_order_that_fails_is_told_with_the_cure(runs: list[OrderRun], parts: list[str]) -> None:
    found = _judged(Spec("toy", ["toy"], seconds=60), Path(), NAMES, runs, 180.0)
    assert found.verdict == FAILED
    assert [part for part in parts if part not in found.reason] == []


def test_modules_of_needs_first_precede_the_extension() -> None:
    spec = Spec("toy", ["toy", "toy.more"], needs_first=["torch"])
    assert allowed_order(("toy", "numpy", "torch", "toy.more"), spec) == ("torch", "toy", "numpy", "toy.more")
    assert allowed_order(("torch", "toy.more", "toy"), spec) == ("torch", "toy.more", "toy")
    listed = Spec("toy", ["torch", "toy"], needs_first=["torch"])
    assert allowed_order(("toy", "torch"), listed) == ("torch", "toy")


def test_orders_have_each_pair_and_each_module_first_with_torch_at_the_end() -> None:
    names = ["t", "a", "b"]
    assert set(orders_of(names)) == set(itertools.permutations(names))
    assert set(orders_of(names[:2])) == {("t", "a"), ("a", "t")}
    orders = list(orders_of([*names, "c"]))
    assert {order[0] for order in orders if order[-1] == "t"} == {"a", "b", "c"}
    pairs = {order[:2] for order in orders}
    assert len(pairs) == 12


@pytest.fixture
def launcher() -> Iterator[tuple[Launcher, subprocess.Popen[bytes]]]:
    """A launcher, and its process."""
    ours, theirs = socket.socketpair()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from builder.gate.imports.launcher import serve\n"
        "serve(int(sys.argv[2]))"
    )
    argv = [sys.executable, "-I", "-c", program, str(Path(__file__).parents[3]), str(theirs.fileno())]
    with subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        yield Launcher(ours), process
        process.kill()
    ours.close()


def test_the_launcher_runs_code_in_processes_that_share_nothing(
    launcher: tuple[Launcher, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    code = (
        "import os, sys\nprint(sys.argv[1:], os.getcwd(), 'builder' in sys.modules, len(os.listdir('/proc/self/fd')),"
        " 'kept' in globals(), flush=True)\nkept = 1\nraise ValueError('no')"
    )
    for _ in range(2):
        with (tmp_path / "out").open("w+b") as out, (tmp_path / "err").open("w+b") as err:
            pid = launcher[0].start(code, ["one", "two"], str(tmp_path), (out, err))
            assert pid != launcher[1].pid
            assert launcher[0].wait(PATIENCE) == 1 << 8
        # Descriptors: three outputs and that of the folder.
        assert (tmp_path / "out").read_text() == f"['one', 'two'] {tmp_path} False 4 False\n"
        assert (tmp_path / "err").read_text().endswith("ValueError: no\n")


def test_a_launcher_that_has_ended_is_an_error(launcher: tuple[Launcher, subprocess.Popen[bytes]]) -> None:
    launcher[1].kill()
    launcher[1].wait()
    with tempfile.TemporaryFile() as out, pytest.raises(OSError, match=r"launcher|Broken pipe|reset"):
        launcher[0].start("", [], "/", (out, out))


def test_a_process_that_hangs_is_an_error_and_can_be_killed(
    launcher: tuple[Launcher, subprocess.Popen[bytes]],
) -> None:
    with tempfile.TemporaryFile() as out:
        pid = launcher[0].start("import time; time.sleep(600)", [], "/", (out, out))
        with pytest.raises(TimeoutError):
            launcher[0].wait(0.01)
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        assert launcher[0].wait(PATIENCE) == signal.SIGKILL
