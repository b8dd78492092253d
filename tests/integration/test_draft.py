"""`buildfarm cases`: drafts for real ops, which the gate then runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.commands.cases.draft_file import cases_text, missing_text
from builder.gate.draft.result import CALLED, Drafts, OpDraft
from builder.gate.outcome import NOT_RUN, PASSED, Spec
from tests.conftest import run
from tests.integration.gate_env import pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

SPEC = Spec(name="sample_correct", imports=["sample_correct"], jobs=2, checks=["ops", "values", "repeat"])


def drafted(interpreter: Path, folder: Path, cases: Path | None = None) -> Drafts:
    gate = pack_gate(interpreter, folder, SPEC, cases)
    done = run(*gate.command, "--draft", cwd=gate.folder, env=gate.env, timeout=300)
    assert done.code == 0, done.all
    assert not gate.processes()
    return Drafts.from_json(json.loads((folder / "answer.json").read_bytes()))


@pytest.fixture(scope="module")
def drafts(gate_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    return drafted(gate_python("2.11.0"), tmp_path_factory.mktemp("drafts") / "run")


def test_most_ops_of_every_kind_are_called(drafts: Drafts) -> None:
    assert drafts.error == ""
    by_op: dict[str, OpDraft] = {draft.op: draft for draft in drafts.drafts}
    multiply = by_op["sample_correct::multiply"]
    assert multiply.state == CALLED, multiply.reason
    assert [one.source for one in multiply.arguments] == ["make.randn(5, 3, grad=True)"] * 2
    assert multiply.results == ["float32 (5, 3)"]
    assert by_op["sample_correct.multiply"].state == CALLED
    called = [draft for draft in drafts.drafts if draft.state == CALLED]
    assert len(called) * 3 >= len(drafts.drafts) * 2, [(d.op, d.reason) for d in drafts.drafts if d not in called]
    assert all(draft.reason for draft in drafts.drafts if draft.state != CALLED)


def test_the_gate_runs_the_draft_and_reports_the_gaps_as_not_run(
    drafts: Drafts, gate_python: Callable[[str], Path], tmp_path: Path
) -> None:
    cases = tmp_path / "cases.py"
    cases.write_text(cases_text("sample_correct", "a cell", drafts))
    result = run_gate(pack_gate(gate_python("2.11.0"), tmp_path / "gate", SPEC, cases))
    # `noise` draws random numbers, which only its author can say.
    assert {one.op for one in result.failures} <= {"sample_correct::noise"}, result.failure_text()
    [values] = result.of("sample_correct::multiply", "values")
    assert (values.verdict, "neither a reference nor an invariant" in values.reason) == (NOT_RUN, True)
    [repeat] = result.of("sample_correct::multiply", "repeat")
    assert repeat.verdict == PASSED


def test_only_ops_without_a_case_are_drafted(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    cases = tmp_path / "cases.py"
    cases.write_text(
        "from builder.gate import Case\n"
        "CASES = [Case('sample_correct::multiply', lambda make: (make.randn(2), make.randn(2)))]\n"
        "NOT_CLAIMED = {'sample_correct.multiply': 'the op behind it has a case'}\n"
    )
    found = drafted(gate_python("2.11.0"), tmp_path / "run", cases)
    assert not {"sample_correct::multiply", "sample_correct.multiply"} & {draft.op for draft in found.drafts}
    compile(missing_text(found), "cases.py", "exec")
