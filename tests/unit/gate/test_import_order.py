"""The outcome that follows from the runs of import orders; the runs themselves are in tests/full."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.import_order import OrderRun, _judged, allowed_order, orders_of

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
