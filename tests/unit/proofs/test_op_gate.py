"""The gate's answer as proofs: one verdict for each check, and "not run" is never passed."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Answer, Outcome
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells import op_gate
from builder.proofs.cells.op_gate import GATE_CHECKS, CellProofs, gate_basis, run_gate
from builder.publish.proof_lines import failed_lines
from tests.unit.canned_gate import WHERE, answer
from tests.unit.matrix import make

PROOFS = CellProofs("ab", Cell.parse("torch2.11.0-cu130-cp312"))


def proofs(*outcomes: Outcome) -> dict[Check, Proof]:
    made = PROOFS.of_gate(Answer(WHERE, ["a::f", "a::g"], list(outcomes)))
    return {proof.check: proof for proof in made}


def test_every_check_has_one_proof_even_without_an_outcome() -> None:
    made = proofs(Outcome("values", "a::f", "plain", PASSED))
    assert tuple(made) == GATE_CHECKS
    assert made[Check.VALUES].verdict is Verdict.PASSED
    assert made[Check.FAKE].verdict is Verdict.NOT_RUN
    assert made[Check.FAKE].reason == "this check applies to no op and no case"


@pytest.mark.parametrize(
    ("check", "of", "figure"),
    [
        ("values", [("a::f", "1"), ("a::f", "2"), ("a::g", "1")], "3 cases of 2 ops"),
        ("dispatch", [("a::f", ""), ("a::g", "")], "2 ops"),
        ("loaded", [("", "toy/_C.so"), ("", "toy/_D.so")], "toy/_C.so, toy/_D.so"),
    ],
)
def test_a_passed_check_counts_what_it_ran_on(check: str, of: list[tuple[str, str]], figure: str) -> None:
    made = proofs(*(Outcome(check, op, case, PASSED) for op, case in of))
    assert made[Check(check)].reason == figure


FIRST, EMPTY, NO_FAKE = ("a::f", "plain"), ("a::f", "empty"), "upstream registers no fake kernel"


@pytest.mark.parametrize(
    ("outcomes", "verdict", "reason"),
    [
        pytest.param(
            [(*FIRST, PASSED), ("a::g", "two levels", FAILED, "3 is not 2"), ("a::h", "", NOT_RUN, "not claimed")],
            Verdict.FAILED,
            "a::g (two levels): 3 is not 2",
            id="a failure names op, case and reason",
        ),
        pytest.param(
            [(f"a::f{n}", "", FAILED, "wrong") for n in range(5)],
            Verdict.FAILED,
            "a::f0: wrong; a::f1: wrong; a::f2: wrong; and 2 more",
            id="failures after the third are counted",
        ),
        pytest.param(
            [(*FIRST, PASSED), (*EMPTY, PASSED), ("a::g", "plain", NOT_RUN, NO_FAKE)],
            Verdict.NOT_RUN,
            f"2 of 3 passed; a::g: {NO_FAKE}",
            id="not run for one op is not run",
        ),
        pytest.param([("a::g", "", NOT_RUN, NO_FAKE)], Verdict.NOT_RUN, NO_FAKE, id="only the reason if nothing ran"),
    ],
)
def test_the_verdict_and_the_reason_of_a_check(outcomes: list[tuple[str, ...]], verdict: Verdict, reason: str) -> None:
    made = proofs(*(Outcome("fake", *one) for one in outcomes))[Check.FAKE]  # type: ignore[arg-type]
    assert (made.verdict, made.reason) == (verdict, reason)


def test_answer_is_settled_and_failed_gate_is_not() -> None:
    assert all(proof.evidence["settled"] for proof in PROOFS.of_gate(answer()))
    assert not any(proof.evidence for proof in PROOFS.not_run("no network"))
    assert all(proof.evidence["settled"] for proof in PROOFS.not_run("no import", settled=True))


def test_evidence_of_a_failure_is_kept() -> None:
    made = proofs(Outcome("memory", "a::f", "plain", FAILED, "wrote past the end", evidence={"stack": "f.cpp:3"}))
    kept = Proof.from_json(json.loads(json.dumps(made[Check.MEMORY].to_json())))
    assert kept.evidence["outcomes"][0]["evidence"] == {"stack": "f.cpp:3"}
    assert kept.evidence["where"]["torch"] == "2.11.0"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return replace(make.recipe("ops"), folder=tmp_path)


def test_basis_changes_with_the_cases_and_their_imports(recipe: Recipe) -> None:
    bases = [gate_basis(recipe)]
    (recipe.folder / "cases.py").write_text("CASES = []\n")
    bases.append(gate_basis(recipe))
    (recipe.folder / "references").mkdir()
    (recipe.folder / "references" / "ops.py").write_text("x = 1\n")
    bases.append(gate_basis(recipe))
    (recipe.folder / "references" / "ops.py").write_text("x = 2\n")
    bases.append(gate_basis(recipe))
    (recipe.folder / "references" / "__pycache__").mkdir()
    (recipe.folder / "references" / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert gate_basis(recipe) == bases[-1]
    (recipe.folder / "references" / "expected.json").write_text("[1]")
    bases.append(gate_basis(recipe))
    bases.append(gate_basis(replace(recipe, companions=("numpy",))))
    assert len({json.dumps(one) for one in bases}) == len(bases)


def test_missing_answer_is_a_sentence(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_: Any) -> int:
        folder = Path(argv[argv.index("--answer") - 1])
        assert argv[argv.index("--write") + 1] == str(folder), "the one folder that it can change"
        assert (folder / "spec.json").is_file()
        return -9

    monkeypatch.setattr(op_gate, "run", run)
    reason = run_gate(Path("python"), recipe, tmp_path / "gate", jobs=2, log=tmp_path / "log", owner="job")
    assert isinstance(reason, str)
    assert "ended by SIGKILL and wrote no results" in reason
    assert str(tmp_path / "log") in reason


def script(folder: Path, text: str) -> Path:
    """A program that takes the place of the cell's Python."""
    path, code = folder / "python", folder / "python.py"
    code.write_text(f"import os, sys\n{text}")
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{code}" "$@"\n')  # a #! line takes no path with a space
    path.chmod(0o755)
    return path


def test_an_answer_of_any_size_is_not_read(tmp_path: Path) -> None:
    python = script(tmp_path, "open(sys.argv[sys.argv.index('--answer') + 1], 'wb').truncate(3 << 30)")
    said = run_gate(python, make.recipe(), tmp_path / "gate", jobs=1, log=tmp_path / "log", owner="large")
    assert said == f"the op gate wrote results of more than 32.0 MiB; the full output is in {tmp_path / 'log'}"


def test_the_gate_gets_no_secret_and_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hunter2@index.example/simple")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    python = script(tmp_path, "import time; print(os.environ, flush=True); time.sleep(600)")
    for seconds in (1, 10, 120):  # a slow machine starts a Python in more than a second
        monkeypatch.setattr(op_gate, "gate_seconds", lambda _, limit=seconds: limit)
        run_gate(
            python, make.recipe(), tmp_path / f"gate{seconds}", jobs=1, log=tmp_path / "log", owner=f"secret {tmp_path}"
        )
        log = (tmp_path / "log").read_text()
        assert log.endswith(f"buildfarm ended the program: it did not finish within {seconds} s\n")
        if "PATH" in log:
            break
    assert "OMP_NUM_THREADS" in log
    assert "hunter2" not in log


def test_a_gate_without_an_answer_fails_and_is_tried_again() -> None:
    proofs = PROOFS.of_gate("the op gate exited with status -9")
    assert [proof.check for proof in proofs] == list(GATE_CHECKS)
    for proof in proofs:
        assert proof.verdict is (Verdict.NOT_RUN if proof.check.on_gpu else Verdict.FAILED)
        assert proof.evidence["limit"] == "time"


def test_time_limit_follows_the_limit_of_a_case() -> None:
    short, long = (op_gate.gate_seconds(replace(make.recipe(), seconds_per_case=one)) for one in (60, 120))
    assert long - short == 240 * 60


def test_interrupt_kills_the_gate_whose_task_directories_are_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaped: list[str] = []
    directories: list[str] = []

    def interrupted(*_: object, env: dict[str, str], **__: object) -> int:
        directories.append(env["TMPDIR"])
        raise KeyboardInterrupt

    monkeypatch.setattr(op_gate, "run", interrupted)
    monkeypatch.setattr(op_gate, "kill_orphans", reaped.append)
    with pytest.raises(KeyboardInterrupt):
        run_gate(Path("python"), make.recipe(), tmp_path / "gate", jobs=1, log=tmp_path / "log", owner="mine")
    assert reaped == ["mine"]
    assert directories == [str(tmp_path / "gate" / "tmp")]


def test_one_crash_is_one_sentence_and_one_line() -> None:
    crash = "dies with SIGSEGV (a segmentation fault) in f of _C.so"
    outcomes = [
        Outcome(check, "a::f", case, FAILED, f"{crash} (step: {check}, {case})")
        for check in ("values", "gradients", "memory")
        for case in ("plain", "empty")
    ]
    made = proofs(*outcomes)
    assert made[Check.VALUES].reason == f"a::f (plain, empty): {crash} (step: values, plain)"
    assert failed_lines(list(made.values())) == [
        f"values, gradients, memory: a::f (plain, empty): {crash} (step: values, plain)"
    ]
