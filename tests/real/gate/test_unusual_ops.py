"""Unusual inputs and results: correct ops pass every check, and a defect that only such an input shows is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.gate.outcome import Spec
from tests.fixtures.gate_env import GateRun, build_wheel, cases, make_environment, outcome_text, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: The checks that call an op.
CHECKS = ("values", "gradients", "layouts", "repeat", "memory", "opcheck", "fake", "devices", "export", "compile")


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    """One run of the gate on all ops."""
    folder = tmp_path_factory.mktemp("unusual")
    python = make_environment(store, folder / "torch", "2.11.0", "3.12", [build_wheel(folder, "sample_unusual")])
    spec = Spec("sample_unusual", ["sample_unusual"], checks=["ops", *CHECKS])
    return run_gate(pack_gate(python, folder / "gate", spec, cases("unusual")))


def test_correct_ops_pass_every_check(found: GateRun) -> None:
    assert not found.failures, outcome_text(found.failures)
