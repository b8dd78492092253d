"""`buildfarm report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli.options import JsonOption, StoreOption
from builder.cli.output import print_data
from builder.commands.folders import open_store
from builder.errors import Code, NothingSelectedError, UsageError
from builder.log import print_line
from builder.publish.runs.markdown import report_markdown
from builder.publish.runs.page import report_page
from builder.publish.runs.view import BuildView, CellView, Report, report_of, title_of
from builder.storage.runs import Run, find_run, runs
from builder.store import write_atomic

#: The page that is written if no option names another one.
PAGE = Path("buildfarm-report.html")


@dataclass(frozen=True)
class ReportOptions:
    """The options of `buildfarm report`."""

    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The id of a run, or its first characters, as `buildfarm store history` lists them. Default:"
            " the newest run that was started in this folder.",
        ),
    ] = None
    all_runs: Annotated[
        bool, typer.Option("--all", help="Report all runs of the store; each build shows its newest result.")
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help=f"The page to write. Default: {PAGE}, or none with --markdown or --json."
        ),
    ] = None
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a job summary of GitHub Actions, of at most 1 MiB.")
    ] = False
    store: StoreOption = None
    as_json: JsonOption = False


def report(options: ReportOptions) -> None:
    """Write a page about a run of `build` or `smoke`: results, checks, log excerpts, and a timeline.

    Examples:
        buildfarm report
        buildfarm report 20261122 --out report.html
        buildfarm report --all
        buildfarm report --markdown
    """
    run, out = options.run, options.out
    if run and options.all_runs:
        raise UsageError(f"cannot be combined with the run {run}", Code.OPTIONS_CONFLICT, where="--all")
    if options.markdown and options.as_json:
        raise UsageError("cannot be combined with --json", Code.OPTIONS_CONFLICT, where="--markdown")
    opened = open_store(options.store, run=False, must_exist=True)
    found = runs(opened)
    if not found:
        raise NothingSelectedError(
            "no run is recorded in this store",
            Code.NO_RUN,
            where=str(opened.root),
            hints=["run `buildfarm build` or `smoke` first"],
        )
    chosen = report_of(found if options.all_runs else [find_run(found, run) if run else _newest_here(found)])
    if options.markdown:
        print_data(report_markdown(chosen))
    if options.as_json:
        print_data(report_data(chosen))
    if out or not (options.markdown or options.as_json):
        page = out or PAGE
        write_atomic(page.absolute(), report_page(chosen).encode())
        folders = dict.fromkeys(run.folder for run in chosen.runs)
        print_line(f"wrote {page}: {title_of(chosen)}" + (f", in {next(iter(folders))}" if len(folders) == 1 else ""))


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
            "`buildfarm store history` lists the runs; `--all` reports all of them",
        ],
    )


def report_data(report: Report) -> str:
    """The JSON that `buildfarm report --json` prints: runs, builds with their cells and proofs, skipped cells."""
    data = {
        "runs": [_run(run) for run in report.runs],
        "builds": [_build(build) for build in report.builds],
        "skips": [{"reason": reason, "cells": count} for reason, count in report.skips],
    }
    return json.dumps(data, indent=1) + "\n"


def _run(run: Run) -> dict[str, Any]:
    keys = ("id", "started", "seconds", "command", "folder", "interrupted", "timeline")
    data = run.to_json()
    return {key: data[key] for key in keys} | {"results": run.counts()}


def _build(build: BuildView) -> dict[str, Any]:
    return {
        "build": build.name,
        "extension": build.extension,
        "version": build.version,
        "run": build.run,
        "result": build.result,
        "seconds": round(build.seconds, 2),
        "stages": [{"stage": stage, "seconds": round(seconds, 2)} for stage, seconds in build.stages],
        "use": asdict(build.use) if build.use else None,
        "wheel": build.wheel or None,
        "size": build.size or None,
        "objects": {"reused": build.cached[0], "all": build.cached[1]} if build.cached else None,
        "error": build.error or None,
        "code": build.code or None,
        "hints": list(build.hints),
        "proofs": [proof.to_json() for proof in build.proofs],
        "cells": [_cell(cell) for cell in build.cells],
        "log": asdict(build.excerpt) if build.excerpt else None,
    }


def _cell(cell: CellView) -> dict[str, Any]:
    return {
        "cell": cell.cell,
        "level": cell.level,
        "seconds": round(cell.seconds, 2),
        "use": asdict(cell.use) if cell.use else None,
        **({"gpus": list(cell.gpus)} if cell.gpus else {}),
        "proofs": [proof.to_json() for proof in cell.proofs],
    }
