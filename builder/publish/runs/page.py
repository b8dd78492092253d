"""The report of a run as one HTML page, without external files and without scripts; its timeline as an SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from builder.gate.amounts import size_text
from builder.gate.causes import KINDS
from builder.progress.display import StageTime, Timeline, clock
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
    from markupsafe import Markup  # noqa: PLC0415 - a part of jinja2, which loads slowly

    timeline, svg = report.run.timeline, ""
    if timeline and timeline.stages:
        svg = picture(timeline, {build.build: build.result for build in report.builds}, style="")
    environment = templates(_HERE, style=f"{(_HERE / 'report.css').read_text()}\n{STYLE}")
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
    page = environment.get_template("report.html.j2")
    # The picture escapes its texts.
    return page.render(title=report.title(), report=report, run=report.run, picture=Markup(svg))  # noqa: S704


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


WIDTH, LEFT, RIGHT, TOP = 1000, 12, 100, 62
ROW, BAR = 42, 18
#: Width of a character in pixels; a text that does not fit into its bar is left out.
LETTER = 6.6
#: Seconds between two marks of the time axis.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
_LEGEND = {"prepare": "prepare", "wait": "wait", "compile": "compile", "repair": "repair", "check": "check in a cell"}
#: Kinds of stages; what begins with the word has the kind.
_KINDS = {
    "waiting": "wait",
    "compile": "compile",
    "prove": "check",
    "install": "check",
    "import": "check",
    "run every op": "check",
    "repair": "repair",
    "test": "repair",
    "copy": "repair",
}

STYLE = Path(__file__).with_name("timeline.css").read_text()

#: The place of a time on the horizontal axis.
_X = Callable[[float], float]


def picture(timeline: Timeline, results: Mapping[str, str], style: str = STYLE) -> str:
    """The SVG of a timeline; `results` has the result of each build, and `style` is its CSS; empty if the page has it.

    Screen readers get the title only, because the page has tables with the same texts.
    """
    rows: dict[str, list[StageTime]] = {}  # by build, in the order in which the builds started
    for stage in sorted(timeline.stages, key=lambda stage: stage.start):
        rows.setdefault(stage.build, []).append(stage)
    end = max([stage.end for stage in timeline.stages] + [1.0])

    def x(seconds: float) -> float:
        return round(LEFT + seconds / end * (WIDTH - LEFT - RIGHT), 1)

    bottom = TOP + ROW * len(rows)
    height = bottom + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-labelledby="timeline-title">',
        f'<title id="timeline-title">Timeline: {len(rows)} rows in {clock(end)}</title>',
        *([f"<style>{style}</style>"] if style else []),
        *_legend_and_axis(end, x, bottom),
    ]
    for number, (build, stages) in enumerate(rows.items()):
        parts += _row(TOP + ROW * number, build, stages, x)
        if result := results.get(build, ""):
            at = TOP + ROW * number + 30
            parts.append(f'<text x="{x(stages[-1].end) + 6}" y="{at}">{escape(result)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def kind_of(stage: str) -> str:
    """The kind of a stage: `prepare`, `wait`, `compile`, `repair` or `check`."""
    return next((kind for start, kind in _KINDS.items() if stage.startswith(start)), "prepare")


def _legend_and_axis(end: float, x: _X, bottom: float) -> Iterator[str]:
    left = LEFT
    for kind, text in _LEGEND.items():
        yield f'<rect class="{kind}" x="{left}" y="8" width="14" height="14"/>'
        yield f'<text x="{left + 20}" y="19">{text}</text>'
        left += 50 + round(LETTER * len(text))
    step = next((step for step in _STEPS if end / step <= 10), _STEPS[-1])
    for seconds in range(0, int(end) + 1, step):
        yield f'<path class="grid" d="M{x(seconds)} {TOP - 8}V{bottom}"/>'
        yield f'<text class="quiet" x="{x(seconds)}" y="{TOP - 14}">{clock(seconds)}</text>'


def _row(top: int, build: str, stages: Sequence[StageTime], x: _X) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="{top + 12}">{escape(plain(build, 120))}</text>'
    for stage in stages:
        left, width = x(stage.start), max(round(x(stage.end) - x(stage.start), 1), 1)
        text = plain(stage.stage)
        place = f" on {plain(stage.machine)}" if stage.machine and stage.machine not in build else ""
        title = escape(f"{text}{place}: {clock(stage.start)} to {clock(stage.end)}")
        yield (
            f'<rect class="{kind_of(stage.stage)}" x="{left}" y="{top + 17}" width="{width}" height="{BAR}">'
            f"<title>{title}</title></rect>"
        )
        for short in (f"{text}{place}", text, text.partition(" in ")[0]):  # the last one is without the cell
            if short and len(short) * LETTER + 8 <= width:
                yield f'<text x="{left + 4}" y="{top + 30}">{escape(short)}</text>'
                break
