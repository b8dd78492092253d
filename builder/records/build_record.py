"""What the store keeps beside a wheel: the record inside the wheel, and how its build went on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from builder.records.cache_statistics import CacheStatistics
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
