"""The verdicts of several GPU models: how they become one, which are asked again, and how people see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands.distributed.client.prove import CellChecks, merge_models, open_models
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.cell_run import not_run_in_cell
from builder.proofs.cells.prover import cell_basis
from builder.publish.gpu_models import models_of, proven_on
from builder.publish.proof_lines import causes, gpu_lines
from tests.unit.commands.distributed.made_up import CELL, PROOF_TASK, RECIPE, SHA, on, proofs

NOBODY = "no worker can run checks for sm_80: w0 has no GPU of the model sm_80"
GPU = Check.GPU_VALUES
PASSED, FAILED, NOT_RUN = proofs(Verdict.PASSED), proofs(Verdict.FAILED, "the result is 3"), proofs(Verdict.NOT_RUN)
THREE = "sm_90: the result is 3"
MISSING = not_run_in_cell(NOBODY, SHA, CELL).proofs


def together(by_model: Mapping[str, tuple[Proof, ...]], earlier: tuple[Proof, ...] = ()) -> tuple[Proof, ...]:
    return merge_models(by_model, {proof.check: proof for proof in earlier})


def verdicts(proof: Proof) -> dict[str, str]:
    return {model: str(found.verdict) for model, found in models_of(proof).items()}


#: Proofs on each model, and the verdict, the reason and the models of one verdict from them.
MERGED: dict[str, tuple[dict[str, tuple[Proof, ...]], str, str, dict[str, str]]] = {
    "passed on both": ({"sm_80": PASSED, "sm_90": PASSED}, "passed", "", {"sm_80": "passed", "sm_90": "passed"}),
    "failed on one": ({"sm_80": PASSED, "sm_90": FAILED}, "failed", THREE, {"sm_80": "passed", "sm_90": "failed"}),
    "a model that nobody has": (
        {"sm_80": MISSING, "sm_90": PASSED}, "passed", "", {"sm_80": "not run", "sm_90": "passed"},
    ),
    "failed on the model that somebody has": (
        {"sm_80": MISSING, "sm_90": FAILED}, "failed", THREE, {"sm_80": "not run", "sm_90": "failed"},
    ),
    "no model at all": ({"sm_80": MISSING, "": NOT_RUN}, "not run", NOBODY, {"sm_80": "not run"}),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_one_verdict_from_several_models(name: str) -> None:
    by_model, *expected = MERGED[name]
    merged = on(GPU, together(by_model))
    assert [str(merged.verdict), merged.reason, verdicts(merged)] == expected


def test_checks_without_a_gpu_come_from_a_worker_that_ran_them() -> None:
    worse = proofs(Verdict.PASSED, others=Verdict.FAILED)
    assert on(Check.IMPORT, together({"sm_80": PASSED, "sm_90": worse})).verdict is Verdict.FAILED
    merged = together({"sm_80": MISSING, "sm_90": tuple(p for p in PASSED if p.check is not Check.LINKAGE)})
    assert on(Check.IMPORT, merged).verdict is Verdict.PASSED
    assert Check.LINKAGE not in {proof.check for proof in merged}


def test_a_worker_of_any_kind_changes_nothing() -> None:
    assert together({"": PASSED}) == PASSED


def test_models_of_earlier_proofs_stay() -> None:
    earlier = together({"sm_80": PASSED})
    merged = on(GPU, together({"sm_90": PASSED}, earlier))
    assert verdicts(merged) == {"sm_80": "passed", "sm_90": "passed"}
    again = on(GPU, together({"sm_80": MISSING, "sm_90": PASSED}, earlier))
    assert verdicts(again) == {"sm_80": "passed", "sm_90": "passed"}
    failed = on(GPU, together({"sm_90": PASSED}, together({"sm_80": FAILED})))
    assert (failed.verdict, failed.reason) == (Verdict.FAILED, "sm_80: the result is 3")
    cured = on(GPU, together({"sm_80": PASSED}, together({"sm_80": FAILED})))
    assert (cured.verdict, verdicts(cured)) == (Verdict.PASSED, {"sm_80": "passed"})


def test_a_worker_that_used_another_gpu_proves_nothing_for_the_model() -> None:
    where = {"gpus": [{"name": "NVIDIA H200", "sm": "sm_90"}]}
    merged = on(GPU, together({"sm_80": proofs(Verdict.PASSED, where=where)}))
    assert (merged.verdict, merged.reason) == (Verdict.NOT_RUN, "the worker tested on sm_90 and not on sm_80")


@pytest.mark.parametrize(
    ("known", "gpus", "expected"),
    [
        pytest.param((), (), ("",), id="no proof"),
        pytest.param((), ("sm_90",), ("sm_90",), id="no proof on a model"),
        pytest.param(PASSED, (), (), id="passed, and no model is asked for"),
        pytest.param(NOT_RUN, (), ("",), id="not run, for a reason of the machine"),
        pytest.param(proofs(Verdict.NOT_RUN, settled=True), (), (), id="not run, and no machine changes that"),
        pytest.param(proofs(Verdict.NOT_RUN, settled=True), ("sm_90",), ("sm_90",), id="not run without a GPU"),
        pytest.param(together({"sm_80": PASSED}), ("sm_80",), (), id="the model is decided"),
        pytest.param(together({"sm_80": PASSED}), ("sm_80", "sm_90"), ("sm_90",), id="one model is decided"),
        pytest.param(together({"sm_80": MISSING, "sm_90": PASSED}), ("sm_80",), ("sm_80",), id="nobody had the model"),
    ],
)
def test_models_that_could_decide_a_check(
    known: tuple[Proof, ...], gpus: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert open_models({proof.check: proof for proof in known}, gpus) == expected


def test_earlier_proofs_count_only_with_the_same_basis() -> None:
    basis = cell_basis(RECIPE)
    current = [replace(proof, basis=basis[proof.check]) for proof in PASSED]
    checks = CellChecks(PROOF_TASK, Path("wheel"), {}, (), current, Path("log"))
    assert checks.models == ()
    assert replace(checks, task=replace(PROOF_TASK, again=True)).models == ("",)
    assert replace(checks, earlier=[replace(proof, basis="old") for proof in current]).models == ("",)


def test_people_see_the_models() -> None:
    both = together({"sm_90": PASSED, "sm_120": PASSED, "sm_80": MISSING})
    assert gpu_lines(both, 100) == ["  passed    GPU           sm_90, sm_120"]
    assert f"GPU sm_80: {NOBODY}" in causes(both).sentences("not run")
    assert proven_on(both) == {str(CELL): ("sm_90", "sm_120")}
    assert gpu_lines(together({"sm_90": FAILED}), 100) == []


def test_one_machine_names_its_gpu() -> None:
    where = {"gpus": [{"sm": "sm_90"}, {"sm": "sm_80"}]}
    assert gpu_lines(proofs(Verdict.PASSED, where=where), 100) == ["  passed    GPU           sm_90"]


@pytest.mark.parametrize(
    "evidence",
    [
        {"gpu_models": {"<b>": {"verdict": "passed"}, "sm_90": {"verdict": "fine"}, "sm_80": "passed"}},
        {"gpu_models": [], "where": {"gpus": [{"sm": "sm_90 | x"}]}},
        {"where": {"gpus": "sm_90"}},
        {"where": 3},
    ],
)
def test_evidence_of_others_names_no_made_up_models(evidence: dict[str, object]) -> None:
    assert models_of(Proof(SHA, CELL, GPU, Verdict.PASSED, "", evidence)) == {}
