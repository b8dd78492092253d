"""Why `dist/` lacks a wheel: what the last `buildfarm build` wrote into report.json about its failed builds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from builder.errors import BuildfarmError, Code, NothingSelectedError
from builder.hashing import sha256_of
from builder.proof import Verdict
from builder.untrusted.json_data import MAX_OWN_JSON, JsonError, read_json, text, texts


def failed_build(dist: Path, extensions: Collection[str], cells: Collection[str]) -> BuildfarmError | None:
    """The first build of report.json that is for these extensions and cells and failed, as an error; else None."""
    found = _failed(
        dist, "there is no wheel to test", NothingSelectedError, lambda entry: _is_selected(entry, extensions, cells)
    )
    return next(iter(found), None)


def unpublished_builds(dist: Path) -> list[BuildfarmError]:
    """Each build of report.json that failed, as an error of `publish`; not one whose wheel is in `dist`."""
    what = "there is no wheel of this build to publish"
    return _failed(dist, what, BuildfarmError, lambda entry: not _is_in(dist, entry))


def _failed(
    dist: Path, what: str, kind: type[BuildfarmError], wanted: Callable[[Mapping[str, Any]], bool]
) -> list[BuildfarmError]:
    """The wanted ones of the failed builds in report.json, as errors."""
    report = dist / "report.json"

    def errors(data: Mapping[str, Any]) -> list[BuildfarmError]:
        return [
            kind(
                f"{what}, because the last `buildfarm build` {'refused the wheel' if 'wheel' in entry else 'failed'}:"
                f" {_reason(entry)}",
                Code.NO_WHEEL,
                where=text(entry["build"]),
                hints=[*texts(entry["hints"]), f"the report of this build is {report}"],
            )
            for entry in data["builds"]
            if entry["status"] == "failed" and wanted(entry)
        ]

    with suppress(OSError, JsonError):  # no report, or one of a different version
        return read_json(report, errors, limit=MAX_OWN_JSON)
    return []


def _is_in(dist: Path, entry: Mapping[str, Any]) -> bool:
    """Whether `dist` has the very wheel of a build, because only its cases.py was wrong."""
    wheel = dist / Path(entry.get("wheel", "none.whl")).name
    return wheel.is_file() and sha256_of(wheel) in {proof["wheel"] for proof in entry["proofs"]}


def _is_selected(entry: Mapping[str, Any], extensions: Collection[str], cells: Collection[str]) -> bool:
    named = any(entry["build"].startswith(f"{name}-") for name in extensions)
    return named and not set(entry["serves"]).isdisjoint(cells)


def _reason(entry: Mapping[str, Any]) -> str:
    """The first failed check with its reason, or the error of a build without a wheel."""
    for proof in entry.get("proofs", ()):
        if proof["verdict"] == Verdict.FAILED:
            return f"{proof['check']}: {proof['reason']}"
    return str(entry["error"]).removeprefix(f"{entry['build']}: ")
