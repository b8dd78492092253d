"""What `store history` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from builder.publish.terminal import fits, to_text
from builder.storage.runs import Run


def history_text(runs: Sequence[Run]) -> str:
    """One line for each run, the newest first."""
    if not runs:
        return "No run is recorded in this store.\n"
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in ("run", "started (UTC)", "time", "result", "command"):
        table.add_column(column, no_wrap=True)
    rows = [
        (run.id, f"{run.started:%Y-%m-%d %H:%M}", f"{run.seconds:.0f} s", _result(run), escape(run.command))
        for run in runs
    ]
    for row in rows:
        table.add_row(*row)
    if fits(table):
        return to_text(table)
    return to_text(*(f"{run}  {time}  {result}\n  {command}" for run, _, time, result, command in rows))


def run_text(run: Run) -> str:
    """The builds of one run: wheel, result, how many checks have each verdict, and the logs of failed builds."""
    ended = "interrupted after" if run.interrupted else "took"
    started = f"started {run.started:%Y-%m-%d %H:%M} UTC in {run.folder}, {ended} {run.seconds:.0f} s"
    lines = [run.command, started, ""]
    for build in run.report["builds"]:
        lines.append(f"{build.get('wheel') or build['build']}: {build['status']}{_checks(build)}")
        if build["error"]:
            lines.append(f"  error: {build['error']}")
        if log := run.logs.get(build["build"]):
            lines.append(f"  log: {log}")
    lines += [f"{name}: not finished" for name in run.unfinished]
    if skips := len(run.report["skips"]):
        lines.append(f"{skips} cell{'s were' if skips != 1 else ' was'} skipped")
    return "".join(f"{line}\n" for line in lines)


def history_json(runs: Sequence[Run]) -> str:
    """All runs as JSON, without their reports and timelines."""
    large = ("report", "timeline")
    data = [{k: v for k, v in run.to_json().items() if k not in large} | {"builds": run.counts()} for run in runs]
    return json.dumps(data, indent=1) + "\n"


def run_json(run: Run) -> str:
    """One run as JSON, with its report.json under `report`."""
    return json.dumps(run.to_json(), indent=1) + "\n"


def _result(run: Run) -> str:
    counts = run.counts() | ({"not finished": len(run.unfinished)} if run.unfinished else {})
    shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no builds"
    return f"interrupted: {shown}" if run.interrupted else shown


def _checks(build: Mapping[str, Any]) -> str:
    counts: dict[str, int] = {}
    for proof in build.get("proofs", ()):
        counts[proof["verdict"]] = counts.get(proof["verdict"], 0) + 1
    shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"; checks: {shown}" if shown else ""
