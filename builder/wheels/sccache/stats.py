"""Reads what the compiler cache did for one build."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from builder.log import print_warning
from builder.records.cache_statistics import CacheStatistics
from builder.untrusted.json_data import JsonError, read_json


def read_statistics(statistics_dir: Path) -> CacheStatistics:
    """Read what a build's launchers left in their folder.

    A warning is printed once in a run if the shared cache was not used.
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
        return read_json(statistics_dir / "stats.json", _statistics)
    except FileNotFoundError:
        return CacheStatistics(unreadable="sccache's server ended before the build")
    except JsonError:
        return CacheStatistics(unreadable="buildfarm cannot read the statistics of this sccache")


def _statistics(data: dict[str, Any]) -> CacheStatistics:
    """From the output of `sccache --show-stats --stats-format=json`."""
    counts = data["stats"]
    # The call of nvcc itself counts too, as a compile that cannot be cached.
    compiled = int(counts["compilations"]) - int(counts["non_cacheable_compilations"])
    reused = sum(map(int, counts["cache_hits"]["counts"].values()))
    return CacheStatistics(reused, compiled, {str(why): int(number) for why, number in counts["not_cached"].items()})


@cache
def _warn_once(sentence: str) -> None:
    print_warning(sentence)
