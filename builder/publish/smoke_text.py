"""What `smoke` prints: one cell in full, or a row for each cell; the same as data, and for CI as JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from builder.gate.outcome import Answer, Outcome
from builder.gate.report import HEADINGS, junit, table
from builder.proof import Check, Proof, Verdict
from builder.publish.report import not_run_lines, render
from builder.result import Smoked

_MARKS = {Verdict.PASSED: "ok", Verdict.FAILED: "[red]FAIL[/]", Verdict.NOT_RUN: "-"}
_SHOWN = (Check.IMPORT, *(Check(name) for name in HEADINGS))


def smoke_text(smoked: Sequence[Smoked]) -> str:
    """For a person: a single cell op by op; of several a row each, then every failure and why the rest was not run."""
    if len(smoked) == 1 and (answer := smoked[0].answer) is not None:
        return table(f"{smoked[0].subject} in {smoked[0].cell}", answer)
    parts: list[Table | str] = []
    for subject in dict.fromkeys(one.subject for one in smoked):
        cells = [one for one in smoked if one.subject == subject]
        proofs = [proof for one in cells for proof in one.proofs]
        ran = {proof.check for proof in proofs if proof.verdict is not Verdict.NOT_RUN}
        columns = [check for check in _SHOWN if check in ran]
        grid = Table(box=None, pad_edge=False, padding=(0, 1))
        grid.add_column(escape(subject), no_wrap=True)
        for check in columns:
            grid.add_column(HEADINGS.get(str(check), str(check)), no_wrap=True)
        for one in cells:
            marks = {proof.check: _mark(proof) for proof in one.proofs}
            grid.add_row(str(one.cell), *(marks.get(check, "") for check in columns))
        parts += [grid, ""]
        parts += [escape(line) for line in [*_failures(proofs), *not_run_lines(_left(proofs))]]
        parts.append("")
    legend = "ok: every op passed   part: some ops passed, others not run   FAIL: some op failed   -: not run"
    return render(*parts, legend)


def smoke_json(smoked: Sequence[Smoked]) -> str:
    """Everything, for programs."""
    data = [
        {"subject": one.subject, "cell": str(one.cell), "proofs": [proof.to_json() for proof in one.proofs]}
        for one in smoked
    ]
    return json.dumps(data, indent=1) + "\n"


def smoke_junit(smoked: Sequence[Smoked]) -> str:
    """JUnit XML: a suite for each wheel and cell."""
    suites: dict[str, Answer] = {}
    for one in smoked:
        name = title = f"{one.subject} in {one.cell}"
        while name in suites:  # two wheels of one name: neither may hide the other
            name = f"{title} ({sum(other.startswith(title) for other in suites) + 1})"
        suites[name] = one.answer or _unanswered(one.proofs)
    return junit(suites)


def _unanswered(proofs: Sequence[Proof]) -> Answer:
    """What there is to say where the gate did not run: the import failed, or the cell was not to be had."""
    return Answer({}, [], [Outcome(str(proof.check), "", "", str(proof.verdict), proof.reason) for proof in proofs])


def _mark(proof: Proof) -> str:
    outcomes = proof.evidence.get("outcomes", ())
    if proof.verdict is Verdict.NOT_RUN and any(outcome["verdict"] == "passed" for outcome in outcomes):
        return "part"
    return _MARKS[proof.verdict]


def _left(proofs: Sequence[Proof]) -> list[Proof]:
    return [proof for proof in proofs if proof.verdict is Verdict.NOT_RUN]


def _failures(proofs: Sequence[Proof]) -> list[str]:
    """Each failure once, with the cells that showed it."""
    seen: dict[tuple[Check, str], list[str]] = {}
    for proof in proofs:
        if proof.verdict is Verdict.FAILED:
            seen.setdefault((proof.check, proof.reason), []).append(str(proof.cell))
    return [
        f"failed: {check} in {cells[0] if len(cells) == 1 else f'{len(cells)} cells'}: {reason}"
        for (check, reason), cells in seen.items()
    ]
