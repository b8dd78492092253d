"""`accepts` applied to proofs: never passed, whatever the proof was stored as; unused entries are reported."""

from __future__ import annotations

import json
from dataclasses import replace

from builder.gate.acceptance import Accept
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.acceptance import apply_accepts, unused_accepts
from builder.proofs.cells.op_gate import CellProofs, gate_basis
from tests.unit.canned_gate import answer
from tests.unit.matrix import make

CELL = Cell.parse("torch2.11.0-cu130-cp312")
FAKE = Outcome("fake", "tiny::op", "plain", FAILED, "the fake kernel returns another shape")
ACCEPTS = Accept("fake", "upstream knows it", op="tiny::op")


def recipe(*entries: Accept) -> Recipe:
    return replace(make.recipe("tiny"), version="1.4", accepts=entries)


def proofs(*outcomes: Outcome) -> list[Proof]:
    return CellProofs("ab", CELL).of_gate(answer(*outcomes))


def of(check: Check, made: list[Proof]) -> Proof:
    [found] = [proof for proof in made if proof.check is check]
    return found


def test_an_accepted_failure_is_neither_failed_nor_passed_and_keeps_its_finding() -> None:
    raw = proofs(FAKE)
    made = apply_accepts(raw, recipe(ACCEPTS))
    found = of(Check.FAKE, made)
    assert (found.verdict, found.accepted) == (Verdict.ACCEPTED, "upstream knows it")
    assert found.reason == "tiny::op (plain): the fake kernel returns another shape"
    assert found.evidence["outcomes"][0]["accepted"] == "upstream knows it"
    assert [proof for proof in made if proof is not found] == [p for p in raw if p.check is not Check.FAKE]


def test_a_stored_proof_follows_the_recipe_of_today() -> None:
    raw = of(Check.FAKE, proofs(FAKE))
    [accepted] = apply_accepts([raw], recipe(ACCEPTS))
    stored = Proof.from_json(json.loads(json.dumps(accepted.to_json())))
    assert apply_accepts([stored], recipe(ACCEPTS)) == [accepted]
    assert apply_accepts([stored], recipe()) == [raw]


def test_a_second_failure_of_the_check_still_fails() -> None:
    [found] = apply_accepts([of(Check.FAKE, proofs(FAKE, replace(FAKE, op="tiny::more")))], recipe(ACCEPTS))
    assert found.verdict is Verdict.FAILED
    assert found.reason.startswith("tiny::more (plain): ")


def test_a_check_of_the_file_can_be_accepted() -> None:
    raw = Proof("ab", None, Check.TAGS, Verdict.FAILED, "uses GLIBC_2.99", {"symbols": ["x"]})
    [found] = apply_accepts([raw], recipe(Accept("tags", "only for our machines")))
    assert (found.verdict, found.reason, found.accepted) == (Verdict.ACCEPTED, raw.reason, "only for our machines")
    assert apply_accepts([found], recipe()) == [raw]
    assert apply_accepts([raw], recipe(Accept("tags", "in a cell", cell="torch2*"))) == [raw]


def test_a_remark_can_be_accepted() -> None:
    remark = Outcome("loaded", "", "tiny/_video.so", NOT_RUN, "no import loads it", remark=True)
    good = Outcome("loaded", "", "tiny/_C.so", PASSED)
    raw = of(Check.LOADED, proofs(good, remark))
    assert (raw.remark, raw.reason) == (True, "tiny/_video.so: no import loads it")
    [found] = apply_accepts([raw], recipe(Accept("loaded", "loaded on demand", op="tiny/_video.so")))
    assert (found.verdict, found.remark, found.accepted) == (Verdict.ACCEPTED, False, "loaded on demand")
    assert apply_accepts([found], recipe()) == [raw]


def test_an_entry_without_a_finding_is_reported() -> None:
    entries = (ACCEPTS, Accept("values", "gone"), Accept("gpu-values", "no GPU here"), Accept("fake", "x", cell="a*"))
    made = apply_accepts(proofs(FAKE), recipe(*entries))
    assert unused_accepts(recipe(*entries), made) == [
        "`accepts[1]` (check values) matches no finding: remove the entry"
    ]


def test_accepts_are_no_input_of_a_run() -> None:
    assert gate_basis(recipe()) == gate_basis(recipe(ACCEPTS))
