"""What `smoke` prints: the ops of one cell, or a row for each cell; as JSON; and as JUnit XML for CI."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from builder.gate.check_table import CHECKS
from builder.gate.outcome import Answer, Outcome
from builder.gate.report import junit, table
from builder.proof import Check, Proof, Verdict
from builder.publish.proof_lines import accepted_lines, counts, failed_lines, gpu_lines, not_run_lines, remark_lines
from builder.publish.terminal import fits, output_width, to_text
from builder.result import SmokeResult

_MARKS = {Verdict.PASSED: "ok", Verdict.FAILED: "[red]FAIL[/]", Verdict.NOT_RUN: "-", Verdict.ACCEPTED: "acc"}
_COLUMNS = (Check.IMPORT, *(Check(name) for name in CHECKS))
_LEGEND = (
    "ok: every op passed   part: some ops passed, others not run   FAIL: some op failed   acc: a finding is accepted   "
    "-: not run"
)


def smoke_text(results: Sequence[SmokeResult]) -> str:
    """A single result op by op; several as a row for each cell, with every failure and why checks did not run."""
    if len(results) == 1 and (answer := results[0].answer) is not None:
        title = f"{results[0].subject} in {results[0].cell}: {counts(results[0].all_proofs)}"
        lines = [*_finding_lines(results[0].file_proofs), *gpu_lines(results[0].proofs)]
        return table(title, answer, min(output_width(), 120)) + "".join(f"{line}\n" for line in lines)
    parts: list[Table | str] = []
    for subject in dict.fromkeys(result.subject for result in results):
        cells = [result for result in results if result.subject == subject]
        proofs = [proof for result in cells for proof in result.proofs]
        proofs += cells[0].file_proofs
        lines = [*_finding_lines(proofs), *gpu_lines(proofs), *not_run_lines(proofs)]
        parts += [escape(subject), *_tables(cells), "", *map(escape, lines), ""]
    return to_text(*parts, *textwrap.wrap(_LEGEND, output_width(), drop_whitespace=True))


def _finding_lines(proofs: Sequence[Proof]) -> list[str]:
    """Each remark, failure and accepted finding."""
    lines = [f"remark: {line}" for line in remark_lines(proofs)]
    lines += [f"failed: {line}" for line in failed_lines(proofs)]
    return lines + [f"accepted: {line}" for line in accepted_lines(proofs)]


def smoke_json(results: Sequence[SmokeResult]) -> str:
    """Every proof, for programs."""
    data = [
        {
            "subject": result.subject,
            "cell": str(result.cell),
            "proofs": [proof.to_json() for proof in result.all_proofs],
        }
        for result in results
    ]
    return json.dumps(data, indent=1) + "\n"


def smoke_junit(results: Sequence[SmokeResult]) -> str:
    """JUnit XML: a suite for each wheel and cell."""
    suites: dict[str, Answer] = {}
    for result in results:
        name = title = f"{result.subject} in {result.cell}"
        while name in suites:  # two wheels with the same name: both stay visible
            name = f"{title} ({sum(other.startswith(title) for other in suites) + 1})"
        about_file = _without_gate(result.file_proofs).outcomes
        answer = result.answer or _without_gate(result.proofs)
        suites[name] = replace(answer, outcomes=[*about_file, *answer.outcomes])
    return junit(suites)


def _without_gate(proofs: Sequence[Proof]) -> Answer:
    """The proofs as an answer, where the op gate did not run: the import failed, or the cell is unavailable."""
    outcomes = [
        Outcome(str(proof.check), "", "", str(proof.verdict), proof.reason, accepted=proof.accepted) for proof in proofs
    ]
    return Answer({}, [], outcomes)


def _tables(results: Sequence[SmokeResult]) -> list[Table]:
    """Rows of cells and columns of checks; several tables where a single one is too wide."""
    ran = {proof.check for result in results for proof in result.proofs if proof.verdict is not Verdict.NOT_RUN}
    blocks: list[list[Check]] = [[]]
    for check in (check for check in _COLUMNS if check in ran):
        if blocks[-1] and not fits(_table(results, [*blocks[-1], check])):
            blocks.append([])
        blocks[-1].append(check)
    return [_table(results, block) for block in blocks]


def _table(results: Sequence[SmokeResult], checks: Sequence[Check]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1))
    grid.add_column("cell", no_wrap=True)
    for check in checks:
        grid.add_column(CHECKS[check].title if check in CHECKS else str(check), no_wrap=True)
    for result in results:
        marks = {proof.check: _mark(proof) for proof in result.proofs}
        grid.add_row(str(result.cell), *(marks.get(check, "") for check in checks))
    return grid


def _mark(proof: Proof) -> str:
    outcomes = proof.evidence.get("outcomes", ())
    if proof.verdict is Verdict.NOT_RUN and any(outcome["verdict"] == "passed" for outcome in outcomes):
        return "part"
    return _MARKS[proof.verdict]
