"""Why `dist/` has no wheel to test: what the last `buildfarm build` wrote into report.json about the selected cells."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from builder.errors import NothingSelectedError
from builder.proof import Verdict


def failed_build(dist: Path, extensions: Collection[str], cells: Collection[str]) -> NothingSelectedError | None:
    """The first build of report.json that is for these extensions and cells and failed, as an error; else None."""
    report = dist / "report.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # no report, or one of a different version
        for entry in json.loads(report.read_bytes())["builds"]:
            if entry["status"] == "failed" and _is_selected(entry, extensions, cells):
                refused = "refused the wheel" if "wheel" in entry else "failed"
                return NothingSelectedError(
                    f"there is no wheel to test, because the last `buildfarm build` {refused}: {_reason(entry)}",
                    where=entry["build"],
                    hints=[*entry["hints"], f"the report of this build is {report}"],
                )
    return None


def _is_selected(entry: Mapping[str, Any], extensions: Collection[str], cells: Collection[str]) -> bool:
    named = any(entry["build"].startswith(f"{name}-") for name in extensions)
    return named and not set(entry["serves"]).isdisjoint(cells)


def _reason(entry: Mapping[str, Any]) -> str:
    """The first failed check with its reason, or the error of a build without a wheel."""
    for proof in entry.get("proofs", ()):
        if proof["verdict"] == Verdict.FAILED:
            return f"{proof['check']}: {proof['reason']}"
    return str(entry["error"]).removeprefix(f"{entry['build']}: ")
