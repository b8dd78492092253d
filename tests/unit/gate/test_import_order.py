"""The outcome that follows from the runs of import orders; the runs themselves are in tests/full."""

from __future__ import annotations

import itertools
import signal

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.import_order import ImportOrders, OrderRun, allowed_order, orders_of
from builder.gate.processes.order_process import FORK, NEW, WATCH
from builder.gate.system.exit_status import ProcessExit

NAMES = ("torch", "toy")


def outcome_of(runs: list[OrderRun], spec: Spec) -> Outcome:
    orders = ImportOrders(spec, {}, {})
    for run in runs:
        orders.add(run, NEW)
    [found] = orders.outcomes()
    return found


def judged(*called: str, printed: str = "") -> Outcome:
    """The outcome of orders that all succeed, each with the op that returned."""
    runs = [
        OrderRun(order, 0, f"{printed}\nbuildfarm-called {op}\n")
        for order, op in zip((NAMES, NAMES[::-1]), called, strict=True)
    ]
    return outcome_of(runs, Spec("toy", ["toy"], has_cases=any(called)))


def test_orders_that_call_the_same_op_pass_whatever_an_import_prints() -> None:
    assert judged("toy::op", "toy::op", printed="apex not found").verdict == PASSED
    none = judged("", "", printed="hello")
    assert (none.verdict, none.reason.partition(",")[0]) == (NOT_RUN, "no case could be called after the imports")


def test_an_op_that_returns_in_only_one_order_fails() -> None:
    found = judged("toy::op", "")
    assert found.verdict == FAILED
    assert found.reason.startswith("the import order changes which ops work.")
    assert "After toy, torch: every op raises an exception. After torch, toy: toy::op is the first" in found.reason
    assert found.reason.endswith("call in each the first case of toy::op")


LIBC10 = "ImportError: libc10.so: cannot open shared object file: No such file or directory"
TWICE = "RuntimeError: Only a single TORCH_LIBRARY can be used to register the namespace _C; please put all of your"
GOOD = OrderRun(NAMES, 0, "\nbuildfarm-called toy::op\n")


def raises(order: tuple[str, ...], error: str) -> OrderRun:
    trace = f"buildfarm-step import toy\nTraceback (most recent call last):\n  File x\n{error}\nmore text\n"
    return OrderRun(order, 1 << 8, trace)


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        pytest.param(
            [OrderRun(NAMES, 6, "buildfarm-step import torch\n", ProcessExit(6, "time", "180 s"))],
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
    found = outcome_of(runs, Spec("toy", ["toy"]))
    assert found.verdict == FAILED
    assert [part for part in parts if part not in found.reason] == []


def test_an_order_that_fails_in_a_fork_runs_in_a_new_python_and_a_crash_once_more_for_its_stacks() -> None:
    orders = ImportOrders(Spec("toy", ["toy"]), {"apex": None}, {"toy": "1.0"})
    modes = {one.order: one.mode for one in (orders.take(), orders.take()) if one}
    assert modes == {NAMES: FORK, NAMES[::-1]: NEW}
    assert [one.mode for one in orders.add(OrderRun(NAMES, 1 << 8, ""), FORK)] == [NEW]
    orders.add(GOOD, NEW)
    orders._left = 1
    crash = OrderRun(NAMES[::-1], signal.SIGSEGV, "buildfarm-step import toy\n")
    assert [(one.order, one.mode) for one in orders.add(crash, NEW)] == [(NAMES[::-1], WATCH)]
    missing, found = orders.outcomes()
    assert (missing.case, missing.verdict) == ("apex", NOT_RUN)
    assert found.reason.startswith("toy 1.0: import toy dies with SIGSEGV (a segmentation fault)")
    assert found.reason.endswith("; the order torch, toy works")


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
