"""`buildfarm report`: the page about a run."""

from dataclasses import dataclass
from pathlib import Path

from builder.commands.folders import open_store
from builder.errors import Code, NothingSelectedError
from builder.log import print_line
from builder.option import argument, option
from builder.publish.runs.history import runs
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
    store, here = open_store(options.store, run=False, must_exist=True), str(Path.cwd())
    found = [run for run in runs(store) if (run.id.startswith(options.run) if options.run else run.folder == here)]
    if not found:
        sentence = "no run has this id" if options.run else "no run was started in this folder"
        hint = "`buildfarm store history` lists the runs"
        raise NothingSelectedError(sentence, Code.NO_RUN, where=options.run or here, hints=[hint])
    chosen = report_of(found[0])
    write_atomic(options.out.absolute(), report_page(chosen).encode())
    print_line(f"wrote {options.out}: {chosen.title()}, in {chosen.run.folder}")
