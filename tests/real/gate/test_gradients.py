"""What the gate says about the gradient of each op, and about a result that differs from its reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.gate.outcome import CHECKED, FAILED, LOST, NOT_RUN, PASSED, Spec
from tests.fixtures.gate_env import GateRun, build_wheel, cases, make_environment, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

EITHER = "; if the reference in cases.py is the wrong side, correct it and test again"


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    """One run of the gate on all ops."""
    folder = tmp_path_factory.mktemp("gradients")
    python = make_environment(store, folder / "torch", "2.11.0", "3.12", [build_wheel(folder, "sample_gradients")])
    spec = Spec("sample_gradients", ["sample_gradients"], checks=["values", "gradients"])
    return run_gate(pack_gate(python, folder / "gate", spec, cases("gradients")))


@pytest.mark.parametrize("op", ["::lost", "::into", "::scale_", ".detached"])
def test_an_op_without_a_gradient_is_a_remark_with_the_cure(found: GateRun, op: str) -> None:
    [outcome] = found.of(f"sample_gradients{op}", "gradients")
    assert (outcome.verdict, outcome.remark, outcome.evidence) == (NOT_RUN, True, {"gradient": LOST})
    cure = f'register_autograd("sample_gradients{op}"' if "::" in op else "torch.autograd.Function"
    assert outcome.reason.startswith("it has no gradient: the gradients of its inputs are lost; ")
    assert cure in outcome.reason
    assert 'write `not_claimed={"gradients": REASON}` in its Case' in outcome.reason


def test_an_op_whose_backward_is_in_the_wheel_fails_without_a_gradient(found: GateRun) -> None:
    [outcome] = found.of("sample_gradients::leaky_forward", "gradients")
    assert (outcome.verdict, outcome.evidence) == (FAILED, {"gradient": LOST})
    assert "are lost, although leaky_backward computes them; add `torch.library.register_autograd(" in outcome.reason
    assert found.of("sample_gradients::leaky_backward", "gradients") == []


def test_other_ops_are_not_accused(found: GateRun) -> None:
    [checked] = found.of("sample_gradients::joined", "gradients")
    assert (checked.verdict, checked.evidence) == (PASSED, {"gradient": CHECKED})
    [untested] = found.of("sample_gradients::untested", "gradients")
    assert untested.reason == "the op has a gradient, but no case tests it: make an input with grad=True"
    [meant] = found.of("sample_gradients::meant", "gradients")
    assert (meant.verdict, meant.reason, meant.remark) == (NOT_RUN, "not claimed: it is for inference", False)
    assert found.of("sample_gradients::largest", "gradients") == []


def test_a_difference_names_both_sides_and_that_the_reference_may_be_wrong(found: GateRun) -> None:
    [one] = found.of("sample_gradients::is_positive", "values")
    assert one.reason == f"float32: the result is True, the reference has False{EITHER}"
    [several] = found.of("sample_gradients.detached", "values")
    assert "; 12 of 12 elements differ, at most by 1 (allowed: 1e-05 + 0.0001 * expected)" in several.reason
    assert several.reason.endswith(EITHER)
