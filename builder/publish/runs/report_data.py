"""The report of runs as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from builder.publish.runs.view import BuildView, CellView, Report, RunView


def report_data(report: Report) -> str:
    """The JSON that `buildfarm report --json` prints: runs, builds with their cells and proofs, skipped cells."""
    data = {
        "runs": [_run(run) for run in report.runs],
        "builds": [_build(build) for build in report.builds],
        "skips": [{"reason": reason, "cells": count} for reason, count in report.skips],
    }
    return json.dumps(data, indent=1) + "\n"


def _run(run: RunView) -> dict[str, Any]:
    return {
        "id": run.id,
        "started": run.started.isoformat(timespec="seconds"),
        "seconds": run.seconds,
        "command": run.command,
        "folder": run.folder,
        "interrupted": run.interrupted,
        "results": dict(run.results),
        "timeline": run.timeline.to_json() if run.timeline else None,
    }


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
