"""What the store keeps beside a wheel: the record inside the wheel, and how its build went on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from builder.records.cuda_sources import CudaSources
from builder.records.record import Record
from builder.untrusted.json_data import texts


@dataclass(frozen=True)
class BuildRecord:
    """One finished build."""

    #: As in the wheel itself.
    record: Record
    #: File names of the shared libraries that torch, its CUDA packages and the driver bring.
    provided: frozenset[str]
    #: Number of parallel compilers.
    jobs: int
    #: None without a compiler cache.
    objects: CacheStatistics | None
    cuda: CudaSources
    #: BUILD_FORMAT of the buildfarm that built the wheel; 0: it had none.
    format: int
    #: UTC.
    started: datetime
    #: Wall time.
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        return self.record.to_json() | {
            "provided": sorted(self.provided),
            "jobs": self.jobs,
            "objects": self.objects.to_json() if self.objects else None,
            "cuda_sources": self.cuda.to_json(),
            "build_format": self.format,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BuildRecord:
        """Read what `to_json` wrote; raises KeyError, ValueError, TypeError or BuildfarmError on anything else."""
        return cls(
            record=Record.from_json(data),
            provided=frozenset(texts(data["provided"])),
            jobs=int(data["jobs"]),
            objects=CacheStatistics.from_json(data["objects"]) if data["objects"] else None,
            cuda=CudaSources.from_json(data["cuda_sources"]),
            format=int(data.get("build_format", 0)),
            started=datetime.fromisoformat(data["started"]),
            seconds=float(data["seconds"]),
        )


@dataclass(frozen=True)
class CacheStatistics:
    """What the compiler cache did for one build.

    sccache counts steps: the compile of a C++ file is one step; that of a CUDA file has one step for each program that
    nvcc calls.
    """

    reused: int = 0
    compiled: int = 0
    #: Why sccache did not try to cache a call of a compiler, and the number of these calls.
    not_cached: Mapping[str, int] = field(default_factory=dict)
    #: Why the cache was not used at all, or empty.
    refused: str = ""
    #: Why it is unknown what the cache did, or empty.
    unreadable: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the store's record and report.json."""
        reasons = {"not_cached": dict(self.not_cached), "refused": self.refused, "unreadable": self.unreadable}
        return {"reused": self.reused, "compiled": self.compiled} | {n: value for n, value in reasons.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CacheStatistics:
        """Read what `to_json` wrote; raises KeyError or ValueError on anything else."""
        not_cached = {str(reason): int(count) for reason, count in data.get("not_cached", {}).items()}
        reasons = (data.get("refused", ""), data.get("unreadable", ""))
        return cls(int(data["reused"]), int(data["compiled"]), not_cached, *reasons)

    def sentence(self) -> str:
        """One line for a person: how much was reused."""
        if self.refused:
            return f"compiler cache not used: {self.refused}"
        if self.unreadable:
            return f"compiler cache: cannot tell how many steps were reused: {self.unreadable}"
        parts = [f"{self.reused} of {self.reused + self.compiled} steps reused"]
        parts += [f"{count} not cached ({reason})" for reason, count in sorted(self.not_cached.items())]
        return f"compiler cache: {'; '.join(parts)}"
