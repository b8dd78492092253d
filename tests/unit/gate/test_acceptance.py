"""Findings that a recipe accepts: each key of an entry must match, and nothing else is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.gate.acceptance import Accept, accept, cell_name, finding
from builder.gate.outcome import ACCEPTED, FAILED, NOT_RUN, PASSED, Outcome

CELL = "torch2.11.0-cu130-cp312"
FAKE = Outcome("fake", "ns::f.Tensor", "plain", FAILED, "no fake kernel")
ORDERS = {"torch, toy": "works", "toy, torch": "raises ImportError", "toy, numpy, torch": "raises ImportError"}
ORDER = Outcome("import-order", "", "", FAILED, "toy first", evidence={"orders": ORDERS})
REMARK = Outcome("loaded", "", "toy/_C.so", NOT_RUN, "not loaded", remark=True)


@pytest.mark.parametrize(
    ("one", "entry", "accepted"),
    [
        pytest.param(FAKE, Accept("fake", "why"), True, id="check"),
        pytest.param(FAKE, Accept("values", "why"), False, id="another check"),
        pytest.param(FAKE, Accept("fake", "why", op="ns::f"), True, id="op"),
        pytest.param(FAKE, Accept("fake", "why", op="ns::f.Tensor"), True, id="overload"),
        pytest.param(FAKE, Accept("fake", "why", op="ns::g"), False, id="another op"),
        pytest.param(FAKE, Accept("fake", "why", cell="torch2.11.*-cp312"), True, id="cell"),
        pytest.param(FAKE, Accept("fake", "why", cell="torch2.2.*"), False, id="another cell"),
        pytest.param(FAKE, Accept("fake", "why", order=("toy", "torch")), False, id="an order of another check"),
        pytest.param(ORDER, Accept("import-order", "why"), True, id="every order"),
        pytest.param(ORDER, Accept("import-order", "why", order=("toy", "torch")), True, id="both failed orders"),
        pytest.param(ORDER, Accept("import-order", "why", order=("toy", "numpy")), False, id="one of two orders"),
        pytest.param(ORDER, Accept("import-order", "why", order=("torch", "toy")), False, id="a good order"),
        pytest.param(REMARK, Accept("loaded", "why", op="toy/_C.so"), True, id="remark"),
        pytest.param(replace(REMARK, remark=False), Accept("loaded", "why"), False, id="not run"),
        pytest.param(replace(FAKE, verdict=PASSED), Accept("fake", "why"), False, id="passed"),
    ],
)
def test_an_entry_accepts_what_all_its_keys_match(one: Outcome, entry: Accept, accepted: bool) -> None:
    [judged], _ = accept([one], [entry], CELL)
    assert (judged.verdict, judged.accepted) == ((ACCEPTED, "why") if accepted else (one.verdict, ""))
    assert (judged.reason, finding(judged)) == (one.reason, one)


def test_several_entries_may_cover_the_orders_and_unused_ones_are_known() -> None:
    entries = [
        Accept("import-order", "numpy", order=("toy", "numpy", "torch")),
        Accept("import-order", "torch", order=("toy", "torch")),
        Accept("fake", "unused"),
    ]
    [judged], used = accept([ORDER], entries, CELL)
    assert (judged.verdict, judged.accepted, used) == (ACCEPTED, "torch; numpy", {0, 1})


def test_an_entry_that_is_gone_accepts_no_longer() -> None:
    judged, _ = accept([FAKE, REMARK], [Accept("fake", "why"), Accept("loaded", "why")], CELL)
    assert accept(judged, [], CELL) == ([FAKE, REMARK], set())


def test_the_name_of_the_cell_follows_from_the_versions() -> None:
    assert cell_name({"torch": "2.11.0+cu130", "cuda": "13.0", "python": "3.12.1"}) == CELL
