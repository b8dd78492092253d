"""The check "ops": every op has a case, and every case names an op."""

from __future__ import annotations

import pytest

from builder.gate.coverage import case_coverage, may_take_tensor, missing_empty_cases, no_cases
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, NOT_RUN, PASSED
from builder.gate.tasks import CaseFacts


def case(op: str, name: str = "plain", edge: str = "", missing: str = "") -> CaseFacts:
    return CaseFacts(0, op, name, edge=edge, missing=missing)


def verdicts(ops: list[str], *cases: CaseFacts) -> dict[str, str]:
    return {one.op: one.verdict for one in case_coverage(ops, cases)}


def test_an_op_without_a_case_fails_by_name() -> None:
    assert verdicts(["ns::a", "pkg.f"], case("ns::a")) == {"ns::a": PASSED, "pkg.f": FAILED}


def test_the_only_overload_need_not_be_named() -> None:
    assert verdicts(["ns::a.Tensor"], case("ns::a")) == {"ns::a.Tensor": PASSED}


def test_the_default_overload_may_be_named() -> None:
    assert verdicts(["ns::a"], case("ns::a.default")) == {"ns::a": PASSED}
    assert verdicts(["ns::a", "ns::a.out"], case("ns::a.default")) == {"ns::a": PASSED, "ns::a.out": FAILED}


def test_each_of_several_overloads_needs_a_case() -> None:
    ops = ["ns::a", "ns::a.out"]
    assert verdicts(ops, case("ns::a")) == {"ns::a": PASSED, "ns::a.out": FAILED}
    assert verdicts(ops, case("ns::a"), case("ns::a.out")) == dict.fromkeys(ops, PASSED)
    assert verdicts(["ns::a.x", "ns::a.y"], case("ns::a")) == {"ns::a.x": FAILED, "ns::a.y": FAILED}


def test_a_case_of_a_missing_op_fails() -> None:
    [outcome] = case_coverage([], [case("ns::gone", missing="no op of this name is registered")])
    assert (outcome.op, outcome.verdict) == ("ns::gone", FAILED)


def test_a_case_of_an_unknown_op_names_its_line_and_the_nearest_op() -> None:
    unknown = CaseFacts(0, "ns::bias_gellu", "plain", missing="ns::bias_gellu: no op", unknown=True, line=7)
    outcomes = case_coverage(["ns::bias_gelu.default"], [unknown])
    assert [one.reason for one in outcomes if one.case] == [
        "this case in cases.py (line 7) cannot be called: ns::bias_gellu: no op; did you mean ns::bias_gelu?"
    ]
    assert all(MISTAKE_IN_CASES.items() <= one.evidence.items() for one in outcomes)


def test_a_module_that_cannot_be_imported_is_no_mistake_in_cases() -> None:
    outcomes = case_coverage(["pkg.functional.*"], [case("pkg.f", missing="ImportError: undefined symbol")])
    assert [one.evidence.get("mistake") for one in outcomes] == [None, None]


def test_two_cases_with_the_same_name_fail() -> None:
    assert [one.verdict for one in case_coverage(["ns::a"], [case("ns::a"), case("ns::a")])] == [PASSED, FAILED]


def test_an_op_without_a_tensor_needs_no_empty_case() -> None:
    assert missing_empty_cases([CaseFacts(0, "pkg.version", "plain", takes_tensor=False)]) == []


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


def test_an_op_without_an_empty_case_is_reported() -> None:
    assert [one.op for one in missing_empty_cases([case("ns::a"), case("ns::b"), case("ns::b", "none", "empty")])] == [
        "ns::a"
    ]


def test_a_recipe_without_cases_is_told_how_to_draft_some() -> None:
    assert "no cases.py for second" in no_cases("second")  # the wheel of another recipe may have cases
    assert "`buildfarm cases --ext second`" in no_cases("second")


def test_an_op_in_not_claimed_needs_no_case_and_is_not_run() -> None:
    [outcome] = case_coverage(["ns::a.default"], [], {"ns::a": "it decodes pictures"})
    assert (outcome.verdict, outcome.reason) == (NOT_RUN, "not claimed: it decodes pictures")


def test_an_unknown_op_in_not_claimed_fails() -> None:
    [outcome] = case_coverage([], [], {"ns::gone": "a reason"})
    assert (outcome.op, outcome.verdict) == ("ns::gone", FAILED)
