"""The report of a run as one HTML page, without external files and without scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.gate.amounts import size_text
from builder.gate.causes import KINDS
from builder.progress.display import clock
from builder.proof import Proof, Verdict
from builder.publish.people.people_pages import LEVELS, templates
from builder.publish.proof_lines import counts
from builder.publish.runs import view
from builder.publish.runs.timeline_picture import STYLE, picture

if TYPE_CHECKING:
    from jinja2 import Environment

#: The states of a cell, besides the levels.
_STATES = ("failed", "not built")
_ORDER = (Verdict.FAILED, Verdict.ACCEPTED, Verdict.NOT_RUN, Verdict.PASSED)
_HERE = Path(__file__).parent
#: Characters of the evidence of one proof that are shown; `buildfarm report --json` has all.
LONGEST = 6000


def report_page(report: view.Report) -> str:
    """The HTML of a report."""
    from markupsafe import Markup  # noqa: PLC0415 - a part of jinja2, which loads slowly

    timeline, svg = report.run.timeline, ""
    if timeline and timeline.stages:
        svg = picture(timeline, {build.build: build.result for build in report.builds}, style="")
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            title=report.title(),
            report=report,
            run=report.run,
            picture=Markup(svg),  # noqa: S704 - the picture escapes its texts
            states=[*LEVELS, *_STATES],
        )
    )


@cache
def _templates() -> Environment:
    environment = templates(_HERE, style=f"{(_HERE / 'report.css').read_text()}\n{STYLE}")
    environment.filters |= {
        "clock": clock,
        "counts": counts,
        "evidence": evidence_text,
        "plain": view.plain,
        "seconds": view.seconds_text,
        "size": size_text,
        "use": view.use_text,
        "why": _why,
        "worst_first": _worst_first,
    }
    return environment


def _why(build: view.BuildView) -> list[tuple[str, str]]:
    """Each cause as its kind and a sentence, what failed first."""
    causes = view.causes_of_report([build])
    return [(kind, sentence) for kind in reversed(KINDS) for sentence in causes.sentences(kind)]


def _worst_first(proofs: Sequence[Proof]) -> list[Proof]:
    return sorted(proofs, key=lambda proof: _ORDER.index(proof.verdict))


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """The evidence of a proof as JSON, cut at LONGEST characters."""
    text = view.plain(json.dumps(evidence, indent=1, ensure_ascii=False))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… ({len(text) - LONGEST} more characters; `buildfarm report --json` prints all)"
