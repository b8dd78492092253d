"""Which checks of a wheel a worker runs again, and which GPU a proof names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.commands.distributed.client import is_open
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.prover import cell_basis
from builder.publish.op_evidence import model_of, proven_on
from builder.publish.proof_lines import gpu_lines
from tests.unit.commands.distributed.made_up import CELL, PROOF_TASK, RECIPE, SHA, proofs

BASIS = cell_basis(RECIPE)


@pytest.mark.parametrize(
    ("known", "here", "on_gpu"),
    [
        pytest.param((), True, True, id="no proof"),
        pytest.param(proofs(Verdict.PASSED), False, False, id="passed"),
        pytest.param(proofs(Verdict.NOT_RUN), True, True, id="not run, for a reason of the machine"),
        pytest.param(proofs(Verdict.NOT_RUN, settled=True), False, True, id="not run without a GPU"),
    ],
)
def test_checks_that_another_run_could_decide(known: tuple[Proof, ...], here: bool, on_gpu: bool) -> None:
    current = [replace(proof, basis=BASIS[proof.check]) for proof in known]
    assert (is_open(PROOF_TASK, current, gpu=False), is_open(PROOF_TASK, current, gpu=True)) == (here, on_gpu)
    assert is_open(replace(PROOF_TASK, again=True), current, gpu=False)
    assert is_open(PROOF_TASK, [replace(proof, basis="old") for proof in current], gpu=False)


def test_people_see_the_gpu() -> None:
    where = {"gpus": [{"sm": "sm_90"}, {"sm": "sm_80"}]}
    assert proven_on(proofs(Verdict.PASSED, where=where)) == {str(CELL): ("sm_90",)}
    assert gpu_lines(proofs(Verdict.PASSED, where=where), 100) == ["  passed    GPU           sm_90"]
    assert gpu_lines(proofs(Verdict.FAILED, where=where), 100) == []


@pytest.mark.parametrize("where", [{"gpus": [{"sm": "sm_90 | x"}]}, {"gpus": "sm_90"}, 3])
def test_evidence_of_others_names_no_made_up_models(where: object) -> None:
    assert model_of(Proof(SHA, CELL, Check.GPU_VALUES, Verdict.PASSED, "", {"where": where})) == ""
