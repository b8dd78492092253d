"""`buildfarm report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.cli.output import print_data
from builder.commands.folders import open_store
from builder.errors import Code, NothingSelectedError
from builder.log import print_line
from builder.option import argument, flag, option
from builder.publish.runs.history import Run, find_run, runs, tell_running
from builder.publish.runs.markdown import report_markdown
from builder.publish.runs.page import report_page
from builder.publish.runs.view import report_of
from builder.store import write_atomic

#: The page that is written if no option names another one.
PAGE = Path("buildfarm-report.html")


@dataclass(frozen=True)
class ReportOptions:
    """The options of `buildfarm report`."""

    run: str | None = argument(
        "The id of a run, or its first characters, as `buildfarm store history` lists them. Default:"
        " the newest run that was started in this folder.",
        "RUN",
        default=None,
    )
    out: Path | None = option(f"The page to write. Default: {PAGE}, or none with --markdown.", "FILE")
    markdown: bool = flag("Print Markdown for a job summary of GitHub Actions, of at most 1 MiB.")
    store: Path | None = None


def report(options: ReportOptions) -> None:
    """Write a page about a run of `build` or `smoke`: results, checks, ends of logs, and a timeline.

    Examples:
        buildfarm report
        buildfarm report 20261122 --out report.html
        buildfarm report --markdown
    """
    opened = open_store(options.store, run=False, must_exist=True)
    found = runs(opened)
    tell_running(opened)
    if not found:
        raise NothingSelectedError(
            "no run is recorded in this store",
            Code.NO_RUN,
            where=str(opened.root),
            hints=["run `buildfarm build` or `smoke` first"],
        )
    chosen = report_of(find_run(found, options.run) if options.run else _newest_here(found))
    if options.markdown:
        print_data(report_markdown(chosen))
    if options.out or not options.markdown:
        page = options.out or PAGE
        write_atomic(page.absolute(), report_page(chosen).encode())
        print_line(f"wrote {page}: {chosen.title()}, in {chosen.run.folder}")


def _newest_here(found: Sequence[Run]) -> Run:
    """The newest run of this folder; raises NothingSelectedError if all runs are of other folders."""
    here = str(Path.cwd())
    for run in found:
        if run.folder == here:
            return run
    raise NothingSelectedError(
        "no run was started in this folder",
        Code.NO_RUN,
        where=here,
        hints=[
            f"the newest run is of {found[0].extensions or 'no build'}, in {found[0].folder}: `buildfarm report"
            f" {found[0].id}`",
            "`buildfarm store history` lists the runs",
        ],
    )
