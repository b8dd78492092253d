"""The gate's answer as proofs: one verdict for each check, and "not run" is never passed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.gate.outcome import CHECKS, FAILED, NOT_RUN, PASSED, Answer, Outcome
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proof import Check, Proof, Verdict
from builder.proofs import gating
from builder.proofs.gating import GATE, gate_basis, gate_not_run, gate_proofs, run_gate
from tests.unit.canned_gate import NO_GPU, WHERE, answer
from tests.unit.matrix import make

CELL = Cell.parse("torch2.11.0-cu130-cp312")


def proofs(*outcomes: Outcome) -> dict[Check, Proof]:
    made = gate_proofs(Answer(WHERE, ["a::f", "a::g"], list(outcomes)), "ab", CELL)
    return {proof.check: proof for proof in made}


def test_the_checks_of_the_gate_are_checks_of_the_farm() -> None:
    assert [str(check) for check in GATE] == list(CHECKS)
    assert [str(check) for check in GATE if check.on_gpu] == [name for name in CHECKS if name.startswith("gpu-")]


def test_each_check_gets_one_proof_even_those_nothing_was_said_of() -> None:
    made = proofs(Outcome("values", "a::f", "plain", PASSED))
    assert tuple(made) == GATE
    assert made[Check.VALUES].verdict is Verdict.PASSED
    assert made[Check.FAKE].verdict is Verdict.NOT_RUN
    assert made[Check.FAKE].reason == "there is nothing to run it on"


def test_a_failure_names_op_case_and_fault_and_is_one_however_many_others_pass() -> None:
    made = proofs(
        Outcome("values", "a::f", "plain", PASSED),
        Outcome("values", "a::g", "two levels", FAILED, "the result is 3 where 2 is expected"),
        Outcome("values", "a::h", "plain", NOT_RUN, "not claimed"),
    )
    assert made[Check.VALUES].verdict is Verdict.FAILED
    assert made[Check.VALUES].reason == "a::g (two levels): the result is 3 where 2 is expected"


def test_many_failures_are_counted_past_the_third() -> None:
    made = proofs(*(Outcome("values", "a::f", f"case {n}", FAILED, "wrong") for n in range(5)))
    assert made[Check.VALUES].reason.count("wrong") == 3
    assert made[Check.VALUES].reason.endswith("; and 2 more")


def test_a_check_that_one_op_was_not_put_to_is_not_run() -> None:
    made = proofs(
        Outcome("fake", "a::f", "plain", PASSED),
        Outcome("fake", "a::f", "empty", PASSED),
        Outcome("fake", "a::g", "plain", NOT_RUN, "upstream registers no fake kernel"),
    )
    assert made[Check.FAKE].verdict is Verdict.NOT_RUN
    assert made[Check.FAKE].reason == "2 of 3 passed; a::g: upstream registers no fake kernel"


def test_the_reason_alone_stands_where_nothing_ran() -> None:
    made = {proof.check: proof for proof in gate_proofs(answer(), "ab", CELL)}
    assert made[Check.GPU_VALUES].reason == NO_GPU
    assert made[Check.GPU_VALUES].verdict is Verdict.NOT_RUN


def test_an_answer_is_settled_and_a_gate_that_could_not_run_is_not() -> None:
    assert all(proof.evidence["settled"] for proof in gate_proofs(answer(), "ab", CELL))
    assert not any(proof.evidence for proof in gate_not_run("no network", "ab", CELL))
    assert all(proof.evidence["settled"] for proof in gate_not_run("no import", "ab", CELL, settled=True))


def test_the_evidence_of_a_failure_is_kept() -> None:
    made = proofs(Outcome("memory", "a::f", "plain", FAILED, "wrote past the end", evidence={"stack": "f.cpp:3"}))
    kept = Proof.from_json(json.loads(json.dumps(made[Check.MEMORY].to_json())))
    assert kept.evidence["outcomes"][0]["evidence"] == {"stack": "f.cpp:3"}
    assert kept.evidence["where"]["torch"] == "2.11.0"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return replace(make.recipe("ops"), folder=tmp_path)


def test_what_the_verdicts_rest_on_changes_with_the_cases_and_what_they_import(recipe: Recipe) -> None:
    seen = [gate_basis(recipe)]
    (recipe.folder / "cases.py").write_text("CASES = []\n")
    seen.append(gate_basis(recipe))
    (recipe.folder / "references").mkdir()
    (recipe.folder / "references" / "ops.py").write_text("x = 1\n")
    seen.append(gate_basis(recipe))
    (recipe.folder / "references" / "ops.py").write_text("x = 2\n")
    seen.append(gate_basis(recipe))
    seen.append(gate_basis(replace(recipe, companions=("numpy",))))
    assert len({json.dumps(one) for one in seen}) == len(seen)


def test_a_gate_without_an_answer_is_a_sentence(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str], **_: Any) -> int:
        assert Path(argv[4]).joinpath("spec.json").is_file()
        return -9

    monkeypatch.setattr(gating, "run", run)
    said = run_gate(Path("python"), recipe, tmp_path / "gate", jobs=2, log=tmp_path / "log", job="job")
    assert isinstance(said, str)
    assert "status -9" in said
    assert str(tmp_path / "log") in said


def test_data_beside_the_cases_counts_as_much_as_code(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text("CASES = []\n")
    (tmp_path / "references").mkdir()
    data = tmp_path / "references" / "expected.json"
    data.write_text("[1]")
    recipe = replace(make.recipe(), folder=tmp_path)
    before = gate_basis(recipe)
    (tmp_path / "references" / "__pycache__").mkdir()
    (tmp_path / "references" / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert gate_basis(recipe) == before
    data.write_text("[2]")
    assert gate_basis(recipe) != before


def test_an_interrupt_ends_the_gate_and_its_rooms_lie_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaped: list[str] = []
    rooms: list[str] = []

    def interrupted(*_: object, env: dict[str, str], **__: object) -> int:
        rooms.append(env["TMPDIR"])
        raise KeyboardInterrupt

    monkeypatch.setattr(gating, "run", interrupted)
    monkeypatch.setattr(gating, "reap_orphans", reaped.append)
    with pytest.raises(KeyboardInterrupt):
        run_gate(Path("python"), make.recipe(), tmp_path / "gate", jobs=1, log=tmp_path / "log", job="mine")
    assert reaped == ["mine"]
    assert rooms == [str(tmp_path / "gate" / "rooms")]
