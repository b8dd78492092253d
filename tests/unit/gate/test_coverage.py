"""The check "ops": every op has a case, and every case names an op."""

from __future__ import annotations

import pytest

from builder.gate.coverage import CaseFacts, case_coverage, may_take_tensor, missing_empty_cases
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, NOT_RUN, PASSED


def case(op: str, name: str = "plain", edge: str = "", missing: str = "") -> CaseFacts:
    return CaseFacts(0, op, name, edge=edge, missing=missing)


@pytest.mark.parametrize(
    ("ops", "named", "failed"),
    [
        pytest.param(["ns::a", "pkg.f"], ["ns::a"], ["pkg.f"], id="an op without a case"),
        pytest.param(["ns::a.Tensor"], ["ns::a"], [], id="the only overload need not be named"),
        pytest.param(["ns::a"], ["ns::a.default"], [], id="the default overload may be named"),
        pytest.param(["ns::a", "ns::a.out"], ["ns::a.default"], ["ns::a.out"], id="only the default overload"),
        pytest.param(["ns::a", "ns::a.out"], ["ns::a"], ["ns::a.out"], id="one of several overloads"),
        pytest.param(["ns::a", "ns::a.out"], ["ns::a", "ns::a.out"], [], id="each of several overloads"),
        pytest.param(["ns::a.x", "ns::a.y"], ["ns::a"], ["ns::a.x", "ns::a.y"], id="none of several overloads"),
        pytest.param(["ns::a"], ["ns::a", "ns::a"], ["ns::a"], id="two cases with the same name"),
    ],
)
def test_each_op_and_overload_has_a_case(ops: list[str], named: list[str], failed: list[str]) -> None:
    outcomes = case_coverage(ops, [case(op) for op in named])
    assert [one.op for one in outcomes if one.verdict == FAILED] == failed
    assert {one.verdict for one in outcomes if one.op not in failed} <= {PASSED}


def test_a_case_of_an_unknown_op_names_the_nearest_op() -> None:
    unknown = CaseFacts(0, "ns::bias_gellu", "plain", missing="ns::bias_gellu: no op", unknown=True)
    outcomes = case_coverage(["ns::bias_gelu.default"], [unknown])
    assert [one.reason for one in outcomes if one.case] == [
        "this case in cases.py cannot be called: ns::bias_gellu: no op; did you mean ns::bias_gelu?"
    ]
    assert all(MISTAKE_IN_CASES.items() <= one.evidence.items() for one in outcomes)
    assert {one.verdict for one in outcomes} == {FAILED}


def test_a_module_that_cannot_be_imported_is_no_mistake_in_cases() -> None:
    outcomes = case_coverage(["pkg.functional.*"], [case("pkg.f", missing="ImportError: undefined symbol")])
    assert [one.evidence.get("mistake") for one in outcomes] == [None, None]


def test_an_op_without_an_empty_case_is_reported_unless_it_takes_no_tensor() -> None:
    cases = [case("ns::a"), case("ns::b"), case("ns::b", "none", "empty")]
    no_tensor = CaseFacts(0, "pkg.version", "plain", takes_tensor=False)
    assert [one.op for one in missing_empty_cases([*cases, no_tensor])] == ["ns::a"]


@pytest.mark.parametrize(
    ("docstring", "may"),
    [
        pytest.param("check(arg0: int, arg1: int, arg2: int) -> bool\n", False, id="three integers"),
        pytest.param("f(x: float = 1.0, *, on: bool = True) -> None", True, id="a star is not understood"),
        pytest.param("f(n: typing.SupportsInt | typing.SupportsIndex) -> int", False, id="pybind11 3"),
        pytest.param("f(x: torch.Tensor, n: int) -> torch.Tensor", True, id="a tensor"),
        pytest.param("f() -> int", False, id="no parameter"),
        pytest.param("1. f(n: int) -> int\n2. f(x: torch.Tensor) -> int", True, id="one overload with a tensor"),
        pytest.param("Adds numbers.", True, id="unknown"),
    ],
)
def test_the_docstring_of_pybind11_says_whether_a_function_takes_a_tensor(docstring: str, may: bool) -> None:
    function = type("Function", (), {"__doc__": docstring})()
    assert may_take_tensor(function) is may


def test_an_op_in_not_claimed_needs_no_case_and_must_exist() -> None:
    outcomes = case_coverage(["ns::a.default"], [], {"ns::a": "it decodes pictures", "ns::gone": "a reason"})
    assert [(one.op, one.verdict) for one in outcomes] == [("ns::a.default", NOT_RUN), ("ns::gone", FAILED)]
    assert outcomes[0].reason == "not claimed: it decodes pictures"
