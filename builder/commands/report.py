"""`buildfarm report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import JsonOption, StoreOption, examples
from builder.cli.output import print_data
from builder.commands.folders import open_store
from builder.errors import NothingSelectedError, UsageError
from builder.log import print_line
from builder.publish.runs.figures import title_of
from builder.publish.runs.markdown import report_markdown
from builder.publish.runs.page import report_page
from builder.publish.runs.report_data import report_data
from builder.publish.runs.view import report_of
from builder.storage.runs import find_run, runs
from builder.store import write_atomic

EXAMPLES = examples(
    "buildfarm report",
    "buildfarm report 20261122 --out report.html",
    "buildfarm report --all",
    "buildfarm report --markdown",
)

#: The page that is written if no option names another one.
PAGE = Path("buildfarm-report.html")

RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The id of a run, or the first characters of the id; `buildfarm store history` lists them. Default: the"
        " newest run.",
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Report all runs of the store; each build shows its newest result.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help=f"The page to write. Default: {PAGE}, or none with --markdown or --json."
    ),
]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown for a job summary of GitHub Actions, of at most 1 MiB.")
]


@dataclass(frozen=True)
class ReportOptions:
    """The options of `buildfarm report`."""

    run: RunArgument = None
    all_runs: AllOption = False
    out: OutOption = None
    markdown: MarkdownOption = False
    store: StoreOption = None
    as_json: JsonOption = False


def report(options: ReportOptions) -> None:
    """Write a page about a run of `build` or `smoke`: results, checks, log excerpts, and a timeline."""
    run, out = options.run, options.out
    if run and options.all_runs:
        raise UsageError(f"cannot be combined with the run {run}", where="--all")
    if options.markdown and options.as_json:
        raise UsageError("cannot be combined with --json", where="--markdown")
    opened = open_store(options.store, run=False)
    found = runs(opened)
    if not found:
        raise NothingSelectedError(
            "no run is recorded in this store", where=str(opened.root), hints=["run `buildfarm build` or `smoke` first"]
        )
    chosen = report_of(found if options.all_runs else [find_run(found, run) if run else found[0]])
    if options.markdown:
        print_data(report_markdown(chosen))
    if options.as_json:
        print_data(report_data(chosen))
    if out or not (options.markdown or options.as_json):
        page = out or PAGE
        write_atomic(page.absolute(), report_page(chosen).encode())
        print_line(f"wrote {page}: {title_of(chosen)}")
