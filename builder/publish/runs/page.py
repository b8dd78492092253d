"""The report of a run as one HTML page, without external files and without scripts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.gate.amounts import size_text
from builder.gate.report import KINDS
from builder.progress.display import clock
from builder.proof import Verdict
from builder.publish.people.people_pages import templates
from builder.publish.proof_lines import counts
from builder.publish.runs.view import BuildView, Report, causes_of_report, plain, seconds_text

_ORDER = (Verdict.FAILED, Verdict.ACCEPTED, Verdict.NOT_RUN, Verdict.PASSED)
_HERE = Path(__file__).parent
#: Characters of the evidence of one proof that are shown; the run.json in the store has all.
LONGEST = 6000


def report_page(report: Report) -> str:
    """The HTML of a report."""
    environment = templates(_HERE, style=(_HERE / "report.css").read_text())
    environment.filters |= {
        "clock": clock,
        "counts": counts,
        "evidence": evidence_text,
        "plain": plain,
        "seconds": seconds_text,
        "size": size_text,
        "why": _why,
        "worst_first": lambda proofs: sorted(proofs, key=lambda proof: _ORDER.index(proof.verdict)),
    }
    return environment.get_template("report.html.j2").render(title=report.title(), report=report, run=report.run)


def _why(build: BuildView) -> list[tuple[str, str]]:
    """Each cause as its kind and a sentence, what failed first."""
    causes = causes_of_report([build])
    return [(kind, sentence) for kind in reversed(KINDS) for sentence in causes.sentences(kind)]


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """The evidence of a proof as JSON, cut at LONGEST characters."""
    text = plain(json.dumps(evidence, indent=1, ensure_ascii=False))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… ({len(text) - LONGEST} more characters; runs/ID/run.json in the store has all)"
