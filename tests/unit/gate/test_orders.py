"""What is concluded from the runs of import orders; the runs themselves are in tests/integration."""

from __future__ import annotations

from pathlib import Path

from builder.gate.orders import Run, _judged
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec

NAMES = ("torch", "toy")


def judged(*called: str, printed: str = "") -> Outcome:
    """Orders that all end well, each with the op that answered."""
    runs = [
        Run(order, 0, f"{printed}\nbuildfarm-called {op}\n", "", 1.0, True)
        for order, op in zip((NAMES, NAMES[::-1]), called, strict=True)
    ]
    return _judged(Spec("toy", ["toy"], has_cases=any(called)), Path(), NAMES, runs, 2.0)


def test_every_order_that_calls_the_same_op_passes_whatever_an_import_prints() -> None:
    assert judged("toy::op", "toy::op", printed="apex not found").verdict == PASSED


def test_no_op_called_is_not_run_with_cases_or_without() -> None:
    found = judged("", "", printed="hello")
    assert (found.verdict, found.reason) == (NOT_RUN, "2 orders import, but no case could be called")


def test_an_op_that_answers_in_one_order_alone_fails() -> None:
    found = judged("toy::op", "")
    assert found.verdict == FAILED
    assert found.reason.startswith(
        "toy, then torch: all import, but then no op answers a call, where after torch, toy it is toy::op"
    )


def test_an_order_has_the_time_that_importing_torch_anew_takes() -> None:
    late = Run(NAMES, -6 << 8, "", "buildfarm-step import torch\n", 180.0, in_time=False)
    found = _judged(Spec("toy", ["toy"], seconds=60), Path(), NAMES, [late], 180.0)
    assert (found.verdict, "does not end within 180 s" in found.reason) == (FAILED, True)
