"""Unusual inputs and results: correct ops pass every check, and a defect that only such an input shows is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.gate.outcome import FAILED, PASSED, Spec
from tests.fixtures.gate_env import GateRun, build_wheel, cases, make_environment, outcome_text, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: The checks that call an op.
CHECKS = ("values", "gradients", "layouts", "repeat", "memory", "opcheck", "fake", "devices", "export", "compile")

#: Op and check, and a regular expression for the reason.
DEFECTS = {
    ("sample_unusual::not_conjugate_product", "values"): r"complex64: the result is -?\d.*j at",
    ("sample_unusual.sparse_changed", "values"): "float32: the op changes its input argument 0",
    ("sample_unusual.conjugate", "gradients"): "complex64: the gradient of argument 0 is",
}


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    """One run of the gate on all ops."""
    folder = tmp_path_factory.mktemp("unusual")
    python = make_environment(store, folder / "torch", "2.11.0", "3.12", [build_wheel(folder, "sample_unusual")])
    spec = Spec("sample_unusual", ["sample_unusual"], checks=["ops", "dispatch", *CHECKS])
    return run_gate(pack_gate(python, folder / "gate", spec, cases("unusual")))


@pytest.mark.parametrize(("op", "check"), DEFECTS)
def test_a_defect_that_only_such_an_input_shows_is_found(found: GateRun, op: str, check: str) -> None:
    [outcome] = found.of(op, check)
    assert outcome.verdict == FAILED, outcome
    assert re.search(DEFECTS[op, check], outcome.reason), outcome.reason


def test_correct_ops_pass_every_check(found: GateRun) -> None:
    others = [one for one in found.failures if (one.op, one.check) not in DEFECTS]
    assert not others, outcome_text(others)


def test_sparse_inputs_run(found: GateRun) -> None:
    ran = {(one.op, one.case, one.check): one.verdict for one in found.answer.outcomes}
    for check in ("values", "layouts", "repeat", "memory"):
        assert ran["sample_unusual.sparse_product", "CSR", check] == PASSED
        assert ran["sample_unusual.sparse_product", "plain", check] == PASSED
    assert ran["sample_unusual.sparse_doubled", "plain", "values"] == PASSED


def test_a_case_may_name_the_default_overload(found: GateRun) -> None:
    for check in ("ops", "dispatch"):
        assert [one.verdict for one in found.of("sample_unusual::plain", check)] == [PASSED]


def test_the_error_of_a_complex_result_is_measured(found: GateRun) -> None:
    [outcome] = found.of("sample_unusual::conjugate_product", "values")
    assert 0 < outcome.evidence["errors"]["complex64"] < 1e-6
    assert [one.verdict for one in found.of("sample_unusual::conjugate_product", "gradients")] == [PASSED]
