"""Every op has a case, every case an op."""

from __future__ import annotations

from builder.gate.coverage import covered, edges
from builder.gate.outcome import FAILED, PASSED
from builder.gate.tasks import CaseFacts


def case(op: str, name: str = "plain", edge: str = "", missing: str = "") -> CaseFacts:
    return CaseFacts(0, op, name, edge=edge, missing=missing)


def verdicts(ops: list[str], *cases: CaseFacts) -> dict[str, str]:
    return {one.op: one.verdict for one in covered(ops, cases)}


def test_an_op_without_a_case_fails_by_name() -> None:
    assert verdicts(["ns::a", "pkg.f"], case("ns::a")) == {"ns::a": PASSED, "pkg.f": FAILED}


def test_the_only_overload_need_not_be_named() -> None:
    assert verdicts(["ns::a.Tensor"], case("ns::a")) == {"ns::a.Tensor": PASSED}


def test_of_several_overloads_each_needs_its_case() -> None:
    ops = ["ns::a", "ns::a.out"]
    assert verdicts(ops, case("ns::a")) == {"ns::a": PASSED, "ns::a.out": FAILED}
    assert verdicts(ops, case("ns::a"), case("ns::a.out")) == dict.fromkeys(ops, PASSED)
    assert verdicts(["ns::a.x", "ns::a.y"], case("ns::a")) == {"ns::a.x": FAILED, "ns::a.y": FAILED}


def test_a_case_of_an_op_that_is_not_there_fails() -> None:
    [outcome] = covered([], [case("ns::gone", missing="nothing of this name")])
    assert (outcome.op, outcome.verdict) == ("ns::gone", FAILED)


def test_two_cases_of_one_name_fail() -> None:
    assert [one.verdict for one in covered(["ns::a"], [case("ns::a"), case("ns::a")])] == [PASSED, FAILED]


def test_an_op_without_an_empty_case_is_told() -> None:
    assert [one.op for one in edges([case("ns::a"), case("ns::b"), case("ns::b", "none", "empty")])] == ["ns::a"]
