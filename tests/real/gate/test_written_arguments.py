"""What an op writes to its arguments is a result: each check compares it. Correct ops pass however they write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Spec
from tests.fixtures.gate_env import GateRun, build_wheel, cases, make_environment, outcome_text, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: The checks that call an op.
CHECKS = ("values", "gradients", "layouts", "repeat", "memory", "opcheck", "fake", "devices", "export", "compile")

#: Op and check, and a regular expression for the reason.
DEFECTS = {
    ("sample_writing::into_unfinished", "memory"): "depends on uninitialised memory",
    ("sample_writing::into_flickering", "repeat"): "two runs with the same input give different bits",
    ("sample_writing::into_without_strides", "layouts"): "with argument 0 strided, .* must be copied back",
    ("sample_writing.into_while_traced", "export"): "the traced result",
    ("sample_writing.into_while_traced", "compile"): "the traced result",
    ("sample_writing::update_untested", "values"): "argument 1 after the call .* the reference does not change this",
    ("sample_writing::update_wrongly", "values"): "float32: argument 1 after the call is",
    ("sample_writing::update_wrongly_for_an_invariant", "values"): "the state must be the double",
    ("sample_writing::update_unfinished", "memory"): "depends on uninitialised memory",
    ("sample_writing::update_flickering", "repeat"): "two runs with the same input give different bits",
    ("sample_writing::update_without_strides", "layouts"): "with argument 1 strided, argument 1 after the call is",
    ("sample_writing.update_while_traced", "export"): "argument 1 after the call is",
    ("sample_writing.update_while_traced", "compile"): "argument 1 after the call is",
    ("sample_writing::scale_wrongly_", "gradients"): "float32: the gradient of argument 1 is",
}


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    """One run of the gate on all ops."""
    folder = tmp_path_factory.mktemp("writing")
    python = make_environment(store, folder / "torch", "2.11.0", "3.12", [build_wheel(folder, "sample_writing")])
    spec = Spec("sample_writing", ["sample_writing"], checks=list(CHECKS))
    return run_gate(pack_gate(python, folder / "gate", spec, cases("writing")))


@pytest.mark.parametrize(("op", "check"), DEFECTS)
def test_a_wrong_value_of_a_written_argument_is_found(found: GateRun, op: str, check: str) -> None:
    [outcome] = found.of(op, check)
    assert outcome.verdict == FAILED, outcome
    assert re.search(DEFECTS[op, check], outcome.reason), outcome.reason


def test_correct_ops_pass_every_check(found: GateRun) -> None:
    others = [one for one in found.failures if (one.op, one.check) not in DEFECTS]
    assert not others, outcome_text(others)
    unable = {
        "sample_writing::into": {"gradients"},
        "sample_writing::update": {"gradients"},
        "sample_writing::into_composite": set[str](),
        "sample_writing::scale_": {"opcheck", "compile"},
        "sample_writing.scale_in_place": {"opcheck"},
    }
    for op, checks in unable.items():
        assert {one.check for one in found.of(op) if one.verdict == PASSED} == set(CHECKS) - checks, op


def test_an_in_place_op_whose_cases_have_no_gradient_is_not_refused(found: GateRun) -> None:
    [outcome] = found.of("sample_writing::scale_without_cases_", "gradients")
    assert (outcome.verdict, "no case tests it" in outcome.reason) == (NOT_RUN, True), outcome
