"""`buildfarm report`: the page about a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.commands.folders import open_store
from builder.errors import Code, NothingSelectedError
from builder.log import print_line
from builder.option import argument, option
from builder.publish.runs.history import Run, find_run, runs
from builder.publish.runs.page import report_page
from builder.publish.runs.view import report_of
from builder.store import write_atomic


@dataclass(frozen=True)
class ReportOptions:
    """The options of `buildfarm report`."""

    run: str | None = argument(
        "The id of a run, or its first characters, as `buildfarm store history` lists them. Default:"
        " the newest run that was started in this folder.",
        "RUN",
        default=None,
    )
    out: Path = option("The page to write.", "FILE", default=Path("buildfarm-report.html"))
    store: Path | None = None


def report(options: ReportOptions) -> None:
    """Write a page about a run of `build` or `smoke`: results, checks, ends of logs, and a timeline.

    Examples:
        buildfarm report
        buildfarm report 20261122 --out report.html
    """
    opened = open_store(options.store, run=False, must_exist=True)
    found = runs(opened)
    if not found:
        raise NothingSelectedError(
            "no run is recorded in this store",
            Code.NO_RUN,
            where=str(opened.root),
            hints=["run `buildfarm build` or `smoke` first"],
        )
    chosen = report_of(find_run(found, options.run) if options.run else _newest_here(found))
    write_atomic(options.out.absolute(), report_page(chosen).encode())
    print_line(f"wrote {options.out}: {chosen.title()}, in {chosen.run.folder}")


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
