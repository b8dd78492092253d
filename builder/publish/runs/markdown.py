"""The report of a run as Markdown for the job summary of GitHub Actions."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from builder.gate.outcome import FAILED, NOT_RUN, REMARK
from builder.publish.runs.history import BuildView, Run, causes_of_report, plain, report_of, seconds_text

#: GitHub shows nothing of a summary that is longer than 1 MiB.
MOST_LOGS = 20


def append_summary(file: Path, run: Run) -> None:
    """Append the report of a run to a file, such as that in GITHUB_STEP_SUMMARY. Raises OSError."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(report_markdown(run))


def report_markdown(run: Run) -> str:
    """The Markdown of a run: failed builds first, and the end of the log of the first MOST_LOGS of them."""
    return "".join(_parts(run))


def _parts(run: Run) -> Iterator[str]:
    """The parts of the Markdown, the most important first. What comes from logs and wheels is always inside of code."""
    builds, skips = report_of(run)
    yield f"### {run.title(code)}\n\n{code(run.command)} took {seconds_text(run.seconds)}\n\n"
    if builds:
        yield f"\n{_row('build', 'result', 'time', 'steps from compiler cache', 'checks')}|{' --- |' * 5}\n"
    for build in builds:
        bold = "**" if build.bad else ""
        yield _row(
            code(build.build, cell=True),
            f"{bold}{build.result}{bold}",
            seconds_text(build.seconds),
            f"{build.objects['reused']} of {build.objects['all']}" if build.objects else "",
            build.verdicts,
        )
    bad = [build for build in builds if build.bad]
    for build in bad[:MOST_LOGS]:
        yield from _failure(build)
    if len(bad) > MOST_LOGS:
        yield f"\nOf {len(bad) - MOST_LOGS} more builds, `buildfarm report` shows why they failed.\n"
    causes = causes_of_report(builds)
    yield from _list("Remarks", map(code, causes.sentences(REMARK)))
    yield from _list("Checks that did not run", map(code, causes.sentences(NOT_RUN)))
    yield from _list("Skipped cells", (f"{count}: {code(reason)}" for reason, count in skips))


def _row(*fields: str) -> str:
    return f"| {' | '.join(fields)} |\n"


def _list(title: str, items: Iterable[str]) -> Iterator[str]:
    """A list below its title; nothing without items."""
    lines = [f"- {item}\n" for item in items]
    yield from [f"\n#### {title}\n\n", *lines] if lines else []


def _failure(build: BuildView) -> Iterator[str]:
    """Why a build failed, and the end of its log."""
    yield f"\n#### {code(build.build)}: {build.result}\n\n"
    reasons = causes_of_report([build]).sentences(FAILED) or ([build.error] if build.error else [])
    yield from (f"- {code(reason)}\n" for reason in reasons)
    yield from (f"- hint: {code(hint)}\n" for hint in build.hints)
    if build.log_end:
        yield f"\n<details><summary>The end of the log</summary>\n\n{fenced(build.log_end)}\n\n</details>\n"


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
