"""Reads what the compiler cache did for one build, file by file."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from builder.log import print_warning
from builder.records.cache_statistics import CacheOutcome, CacheStatistics, SourceFile
from builder.untrusted.json_data import JsonError, read_json, text
from builder.wheels.sccache.server_log import KNOWN_RELEASE, LANGUAGES, Compile, ServerLog, read_server_log

#: Sources that CMake and buildfarm compile to try a compiler; their objects are not part of the wheel.
_TRIALS = re.compile(r"(?:^|/)CMakeFiles/|/cmake[^/]*/Modules/|(?:^|/)buildfarm-check\.")


def read_statistics(statistics_dir: Path, source: str) -> CacheStatistics | None:
    """Read what a build's launchers left in their folder; None when the build had none.

    `source` is the path of the source tree as the compilers got it. When sccache prints a log in an unknown form, a
    warning is printed once in a run, and so it is when the shared cache was not used.
    """
    with suppress(FileNotFoundError):
        reason = (statistics_dir / "unshared").read_text(encoding="utf-8").strip()
        _warn_once(f"the shared compiler cache is not used, and objects stay on this machine: {reason}")
    try:
        reason = (statistics_dir / "refused").read_text(encoding="utf-8").strip()
        return CacheStatistics(refused=reason or "sccache did not start")
    except FileNotFoundError:
        pass
    try:
        log = read_server_log((statistics_dir / "server.log").read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    if reason := _unreadable(log, statistics_dir / "stats.json"):
        _warn_once(f"reuse of objects is not reported: {reason}")
        return CacheStatistics(unreadable=reason)
    return CacheStatistics(_files(log, source))


def _unreadable(log: ServerLog, server_statistics: Path) -> str:
    """Why the log cannot be trusted: the server counted compiles, and the log has no known line of them. Or empty."""
    try:
        release, executed, refused = read_json(server_statistics, _counts)
    except FileNotFoundError:  # the server ended early; what it logged counts
        return ""
    except JsonError:
        release, executed, refused = "of this build", 1, 0
    if (executed and not (log.begins and log.results)) or (refused and not log.refusals):
        return f"buildfarm cannot read the log of sccache {release}, only that of {KNOWN_RELEASE}"
    return ""


def _counts(data: dict[str, Any]) -> tuple[str, int, int]:
    counts = data["stats"]
    return text(data["version"]), int(counts["requests_executed"]), int(counts["requests_not_cacheable"])


@cache
def _warn_once(sentence: str) -> None:
    print_warning(sentence)


def _files(log: ServerLog, source: str) -> tuple[SourceFile, ...]:
    files: dict[str, SourceFile] = {}
    for each in log.compiles:
        name = each.source.removeprefix(f"{source.rstrip('/')}/").removeprefix("./")
        language = LANGUAGES.get(PurePosixPath(name).suffix, "C++")
        if not _TRIALS.search(name):
            files[name] = SourceFile(name, language, *_outcome(each))
    return tuple(sorted(files.values(), key=lambda file: file.name))


def _outcome(each: Compile) -> tuple[CacheOutcome, str]:
    if each.refusal:
        return CacheOutcome.NOT_CACHED, each.refusal
    if each.steps:  # of nvcc: each of its programs has a result of its own
        if all(each.steps):
            return CacheOutcome.REUSED, ""
        if any(each.steps):
            return CacheOutcome.PARTLY, f"{sum(each.steps)} of {len(each.steps)} steps"
        return CacheOutcome.COMPILED, ""
    if each.result in ("cache hit", "cache miss"):
        return (CacheOutcome.REUSED if each.result == "cache hit" else CacheOutcome.COMPILED), ""
    return CacheOutcome.NOT_CACHED, each.result or "sccache logged no result"
