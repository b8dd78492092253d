"""The report of runs as Markdown for the job summary of GitHub Actions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from builder.gate.amounts import size_text
from builder.gate.outcome import FAILED, NOT_RUN, REMARK
from builder.log import print_warning
from builder.publish.people.coverage import Field
from builder.publish.people.people_pages import LABELS
from builder.publish.runs.view import (
    BuildView,
    Excerpt,
    Report,
    causes_of_report,
    grids,
    plain,
    report_of,
    seconds_text,
    title_of,
    verdicts_text,
)
from builder.storage.runs import Run

#: Bytes: GitHub shows nothing of a summary that is longer than 1 MiB.
LIMIT = 1024 * 1024
_LEFT_OUT = (
    "\nThe rest of this report is left out, because GitHub shows at most 1 MiB. `buildfarm report` on the machine of"
    " the run writes all of it.\n"
)


def append_summary(file: Path, run: Run) -> None:
    """Append the report of a run to a file, such as that in GITHUB_STEP_SUMMARY.

    The file gets at most LIMIT bytes. Raises OSError if it cannot be written.
    """
    earlier = file.stat().st_size if file.exists() else 0
    text = report_markdown(report_of([run]), LIMIT - earlier)
    if not text:
        print_warning(f"{file} gets no report of this run, because it is too long for GitHub already")
    with file.open("a", encoding="utf-8") as stream:
        stream.write(text)


def report_markdown(report: Report, limit: int = LIMIT) -> str:
    """The Markdown of a report, of at most `limit` bytes: failed builds first, and a sentence if parts are left out.

    Empty if `limit` is too small for any part.
    """
    parts = list(_parts(report))
    sizes = list(accumulate(len(part.encode()) for part in parts))
    if sizes[-1] <= limit:
        return "".join(parts)
    taken = bisect_right(sizes, limit - len(_LEFT_OUT.encode()))
    return "".join([*parts[:taken], _LEFT_OUT]) if taken else ""


def _parts(report: Report) -> Iterator[str]:
    """The parts of the Markdown, the most important first. What comes from logs and wheels is always inside of code."""
    yield f"### {title_of(report, code)}\n\n"
    if len(report.runs) == 1:
        yield f"{code(report.runs[0].command)} took {seconds_text(report.runs[0].seconds)}\n\n"
    else:
        yield "| run | result | time | command |\n| --- | --- | --- | --- |\n"
        for run in report.runs:
            yield f"| {run.id} | {run.results} | {seconds_text(run.seconds)} | {code(run.command, cell=True)} |\n"
    if report.builds:
        yield "\n| build | result | time | memory | steps from compiler cache | checks |\n"
        yield f"|{' --- |' * 6}\n"
    for build in report.builds:
        yield _row(build)
    for build in report.builds:
        if build.bad:
            yield from _failure(build)
    for title, grid in grids(report.builds):
        yield f"\n#### {code(title)}\n\n"
        platform = "| platform " if grid.has_platforms else ""
        yield f"| torch | CUDA {platform}| {' | '.join(f'Python {each}' for each in grid.pythons)} |\n"
        yield f"|{' --- |' * (len(grid.pythons) + 2 + grid.has_platforms)}\n"
        for row in grid.rows:
            platform = f"| {row.platform} " if grid.has_platforms else ""
            states = " | ".join(map(_state, row.fields))
            yield f"| {row.torch} | {row.cuda} {platform}| {states} |\n"
    for run in report.runs:
        yield from _machines(run)
    causes = causes_of_report(report.builds)
    yield from _list("Remarks", map(code, causes.sentences(REMARK)))
    yield from _list("Checks that did not run", map(code, causes.sentences(NOT_RUN)))
    yield from _list("Skipped cells", (f"{count}: {code(reason)}" for reason, count in report.skips))


def _list(title: str, items: Iterable[str]) -> Iterator[str]:
    """A list below its title; nothing without items."""
    lines = [f"- {item}\n" for item in items]
    yield from [f"\n#### {title}\n\n", *lines] if lines else []


def _machines(run: Run) -> Iterator[str]:
    """What each worker did, as a table; nothing for a run on one machine."""
    if not run.timeline or not run.timeline.machines:
        return
    yield "\n#### Workers\n\n| worker | builds | checks in cells | time |\n| --- | --- | --- | --- |\n"
    for machine in run.timeline.machines:
        stages = [stage for stage in run.timeline.stages if stage.machine == machine]
        names = {stage.build for stage in stages}
        cells = {name for name in names if " in torch" in name}
        seconds = sum(stage.end - stage.start for stage in stages)
        yield f"| {code(machine, cell=True)} | {len(names - cells)} | {len(cells)} | {seconds_text(seconds)} |\n"


def _state(field: Field) -> str:
    """`GPU: sm_80, sm_90`; the models come from evidence, which others may have written."""
    label = LABELS.get(field.state, field.state)
    return f"{label}: {code(', '.join(field.gpus), cell=True)}" if field.gpus else label


def _row(build: BuildView) -> str:
    bold = "**" if build.bad else ""
    cells = (
        code(build.name, cell=True),
        f"{bold}{build.result}{bold}",
        seconds_text(build.seconds),
        size_text(build.use.memory) if build.use else "",
        f"{build.cached[0]} of {build.cached[1]}" if build.cached else "",
        verdicts_text(build),
    )
    return f"| {' | '.join(cells)} |\n"


def _failure(build: BuildView) -> Iterator[str]:
    """Why a build failed, and the parts of its log."""
    yield f"\n#### {code(build.name)}: {build.result}\n\n"
    reasons = causes_of_report([build]).sentences(FAILED) or ([build.error] if build.error else [])
    yield from (f"- {code(reason)}\n" for reason in reasons)
    yield from (f"- hint: {code(hint)}\n" for hint in build.hints)
    if build.excerpt:
        yield from _log(build.excerpt)


def _log(excerpt: Excerpt) -> Iterator[str]:
    if excerpt.error:
        yield f"\nThe first error in the log, from line {excerpt.first}:\n\n{fenced(excerpt.error)}\n"
    yield f"\n<details><summary>The end of the log</summary>\n\n{fenced(excerpt.tail)}\n\n</details>\n"


def code(text: str, *, cell: bool = False) -> str:
    """Text as a code span on one line, in which nothing is Markdown or HTML; `cell`: for a cell of a table."""
    one = " ".join(plain(text, 1000).split())
    if not one:
        return ""
    ticks = "`" * (max((len(run) for run in re.findall("`+", one)), default=0) + 1)
    space = " " if one.startswith("`") or one.endswith("`") else ""
    escaped = re.sub(r"\\*\|", r"\\|", one) if cell else one  # `\\|` would be a backslash and the end of the cell
    return f"{ticks}{space}{escaped}{space}{ticks}"


def fenced(lines: Sequence[str]) -> str:
    """Lines as a code block, with a fence that none of the lines ends."""
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([f"{fence}text", *lines, fence])
