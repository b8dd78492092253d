"""The outcome that follows from the runs of import orders; the runs themselves are in tests/full."""

from __future__ import annotations

from pathlib import Path

from builder.gate.checks.import_order import _judged
from builder.gate.imports.order import Run, allowed_order
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec

NAMES = ("torch", "toy")


def judged(*called: str, printed: str = "") -> Outcome:
    """The outcome of orders that all succeed, each with the op that returned."""
    runs = [
        Run(order, 0, f"{printed}\nbuildfarm-called {op}\n", "", 1.0, True)
        for order, op in zip((NAMES, NAMES[::-1]), called, strict=True)
    ]
    return _judged(Spec("toy", ["toy"], has_cases=any(called)), Path(), NAMES, runs, 2.0)


def test_orders_that_call_the_same_op_pass_whatever_an_import_prints() -> None:
    assert judged("toy::op", "toy::op", printed="apex not found").verdict == PASSED


def test_no_op_called_is_not_run_with_cases_or_without() -> None:
    found = judged("", "", printed="hello")
    assert (found.verdict, found.reason) == (
        NOT_RUN,
        "the imports succeed in 2 orders; no case could be called after them",
    )


def test_an_op_that_returns_in_only_one_order_fails() -> None:
    found = judged("toy::op", "")
    assert found.verdict == FAILED
    assert found.reason.startswith(
        "the import order changes which ops work. The check calls one op after another until an op works. "
        "After toy, torch: every op raises an exception. After torch, toy: toy::op is the first op that works. "
        "To see the exception, start a Python for each import order, and call in each the first case of toy::op"
    )


def test_an_order_has_three_times_the_limit_of_a_case() -> None:
    late = Run(NAMES, -6 << 8, "", "buildfarm-step import torch\n", 180.0, in_time=False)
    found = _judged(Spec("toy", ["toy"], seconds=60), Path(), NAMES, [late], 180.0)
    assert (found.verdict, "does not end within 180 s" in found.reason) == (FAILED, True)


LIBC10 = "ImportError: libc10.so: cannot open shared object file: No such file or directory"


def test_a_module_that_imports_only_after_torch_is_told_how() -> None:
    good = Run(NAMES, 0, "\nbuildfarm-called toy::op\n", "", 1.0, True)
    trace = f"buildfarm-step import toy\nTraceback (most recent call last):\n  File x\n{LIBC10}\nmore text\n"
    found = _judged(Spec("toy", ["toy"]), Path(), NAMES, [good, Run(NAMES[::-1], 1 << 8, "", trace, 1.0, True)], 2.0)
    assert found.verdict == FAILED
    assert LIBC10 in found.reason
    assert "The failure occurs only if torch is not imported before toy" in found.reason
    assert "`needs_first: [torch]`" in found.reason


def test_modules_of_needs_first_precede_the_extension() -> None:
    spec = Spec("toy", ["toy", "toy.more"], needs_first=["torch"])
    assert allowed_order(("toy", "numpy", "torch", "toy.more"), spec) == ("torch", "toy", "numpy", "toy.more")
    assert allowed_order(("torch", "toy.more", "toy"), spec) == ("torch", "toy.more", "toy")
    listed = Spec("toy", ["torch", "toy"], needs_first=["torch"])
    assert allowed_order(("toy", "torch"), listed) == ("torch", "toy")
