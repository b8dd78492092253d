"""The timeline of a run as an SVG: a row for each build, and the cores and the memory below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from builder.gate.amounts import size_text
from builder.progress.display import clock
from builder.progress.stages import StageTime
from builder.publish.runs.view import plain
from builder.timeline import Sample, Timeline, thinned

WIDTH, LEFT, RIGHT, TOP = 1000, 12, 100, 62
ROW, BAR, CHART, GAP = 42, 18, 84, 34
#: Width of a character in pixels; a text that does not fit into its bar is left out.
LETTER = 6.6
#: Points of a line; more are not visible.
MOST_POINTS = 300
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


def picture(
    timeline: Timeline,
    results: Mapping[str, str],
    name: str = "timeline",
    style: str = STYLE,
    *,
    by_name: bool = False,
) -> str:
    """The SVG of a timeline; `results` has the result of each build, and `name` makes its ids unique in a page.

    `style` is its CSS; empty if the page has it. Screen readers get the title only, because the page has tables with
    the same texts. `by_name` is whether the rows are in the order of their names, and not in that of their starts.
    """
    rows = _rows(timeline.stages)
    if by_name:
        rows = dict(sorted(rows.items()))
    end = max([stage.end for stage in timeline.stages] + [sample.at for sample in timeline.samples] + [1.0])

    def x(seconds: float) -> float:
        return round(LEFT + seconds / end * (WIDTH - LEFT - RIGHT), 1)

    bottom = TOP + ROW * len(rows)
    charts = list(_charts(timeline, x, bottom)) if timeline.samples else []
    height = bottom + (2 * (CHART + GAP) + 8 if charts else 8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-labelledby="{name}-title">',
        f'<title id="{name}-title">Timeline: {len(rows)} rows in {clock(end)}</title>',
        f"<style>{style}</style>" if style else "",
        *_legend(),
        *_axis(end, x, height - 8),
        *(
            part
            for number, (build, stages) in enumerate(rows.items())
            for part in _row(number, build, stages, results, x)
        ),
        *charts,
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def by_machine(timeline: Timeline) -> Timeline:
    """The stages with the workers as rows: a second row of a worker has what ran there at the same time."""
    tasks: dict[tuple[str, str], list[StageTime]] = {}
    for stage in timeline.stages:
        if stage.machine:
            tasks.setdefault((stage.machine, stage.build), []).append(stage)
    rows: dict[str, list[float]] = {}  # by worker: when each of its rows is free
    placed: list[StageTime] = []
    for (machine, build), stages in sorted(tasks.items(), key=lambda item: min(stage.start for stage in item[1])):
        start, end = min(stage.start for stage in stages), max(stage.end for stage in stages)
        free = rows.setdefault(machine, [])
        at = next((number for number, until in enumerate(free) if until <= start), len(free))
        free[at : at + 1] = [end]
        row = machine if at == 0 else f"{machine} ({at + 1})"
        placed += [replace(stage, build=row, stage=f"{stage.stage}: {build}") for stage in stages]
    return Timeline(tuple(sorted(placed, key=lambda stage: (stage.machine, stage.build, stage.start))))


def kind_of(stage: str) -> str:
    """The kind of a stage: `prepare`, `wait`, `compile`, `repair` or `check`."""
    return next((kind for start, kind in _KINDS.items() if stage.startswith(start)), "prepare")


def _rows(stages: Sequence[StageTime]) -> dict[str, list[StageTime]]:
    """The stages of each build, in the order in which the builds started."""
    rows: dict[str, list[StageTime]] = {}
    for stage in sorted(stages, key=lambda stage: stage.start):
        rows.setdefault(stage.build, []).append(stage)
    return rows


def _legend() -> Iterator[str]:
    left = LEFT
    for kind, text in _LEGEND.items():
        yield f'<rect class="{kind}" x="{left}" y="8" width="14" height="14"/>'
        yield f'<text x="{left + 20}" y="19">{text}</text>'
        left += 50 + round(LETTER * len(text))


def _axis(end: float, x: Callable[[float], float], bottom: float) -> Iterator[str]:
    step = next((step for step in _STEPS if end / step <= 10), _STEPS[-1])
    for seconds in range(0, int(end) + 1, step):
        yield f'<path class="grid" d="M{x(seconds)} {TOP - 8}V{bottom}"/>'
        yield f'<text class="quiet" x="{x(seconds)}" y="{TOP - 14}">{clock(seconds)}</text>'


def _row(
    number: int, build: str, stages: Sequence[StageTime], results: Mapping[str, str], x: Callable[[float], float]
) -> Iterator[str]:
    y = TOP + ROW * number
    yield f'<text x="{LEFT}" y="{y + 12}">{escape(plain(build, 120))}</text>'
    for stage in stages:
        left, width = x(stage.start), max(round(x(stage.end) - x(stage.start), 1), 1)
        text = plain(stage.stage)
        place = f" on {plain(stage.machine)}" if stage.machine and stage.machine not in build else ""
        title = f"{text}{place}: {clock(stage.start)} to {clock(stage.end)}"
        yield (
            f'<rect class="{kind_of(stage.stage)}" x="{left}" y="{y + 17}" width="{width}" height="{BAR}">'
            f"<title>{escape(title)}</title></rect>"
        )
        short = next((each for each in (f"{text}{place}", text, *_shorter(text)) if _fits(each, width)), "")
        if short:
            yield f'<text x="{left + 4}" y="{y + 30}">{escape(short)}</text>'
    if result := results.get(build, ""):
        yield f'<text x="{x(stages[-1].end) + 6}" y="{y + 30}">{escape(result)}</text>'


def _shorter(text: str) -> tuple[str, str]:
    """A text without the cell, and without the build."""
    return text.partition(" in ")[0], text.partition(": ")[0]


def _fits(text: str, width: float) -> bool:
    return len(text) * LETTER + 8 <= width


def _charts(timeline: Timeline, x: Callable[[float], float], top: float) -> Iterator[str]:
    samples: Sequence[Sample] = timeline.samples
    while len(samples) > MOST_POINTS:
        samples = thinned(samples)
    cores, memory = max(timeline.cores, 1), max(timeline.memory, 1)
    yield from _chart(
        f"cores: filled: programs of this run outside of containers; dashed: all programs of the machine; top: {cores}",
        [(x(s.at), s.cores / cores, s.machine_cores / cores) for s in samples],
        top + GAP,
    )
    yield from _chart(
        f"memory: filled: this run; dashed: the machine; top: {size_text(memory)}",
        [(x(s.at), s.memory / memory, s.machine_memory / memory) for s in samples],
        top + CHART + 2 * GAP,
    )


def _chart(title: str, points: Sequence[tuple[float, float, float]], top: float) -> Iterator[str]:
    """One chart; a point has x, and the shares of the run and of the machine, of which 1 is the top."""
    low = top + CHART

    def line(shares: Sequence[tuple[float, float]]) -> str:
        return "L".join(f"{at:g} {low - min(share, 1) * CHART:.1f}" for at, share in shares)

    yield f'<text class="quiet" x="{LEFT}" y="{top - 7}">{escape(title)}</text>'
    yield f'<path class="grid" d="M{LEFT} {top}H{WIDTH - RIGHT}M{LEFT} {low}H{WIDTH - RIGHT}"/>'
    own = [(at, share) for at, share, _ in points]
    yield f'<path class="compile" d="M{own[0][0]:g} {low}L{line(own)}L{own[-1][0]:g} {low}Z"/>'
    yield f'<path class="machine" d="M{line([(at, share) for at, _, share in points])}"/>'
