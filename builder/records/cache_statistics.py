"""What the compiler cache saved in one build; read from sccache's statistics, kept in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
