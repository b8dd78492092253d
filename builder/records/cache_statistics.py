"""What the compiler cache saved in one build, file by file; read from sccache's log, kept in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CacheOutcome(StrEnum):
    """Whether the cache saved a compile."""

    REUSED = "reused"
    PARTLY = "partly reused"
    COMPILED = "compiled"
    NOT_CACHED = "not cached"


@dataclass(frozen=True)
class SourceFile:
    """One source file of a build, and where its object came from.

    Attributes:
        name: its path, relative to the source tree if it is inside.
        language: `C`, `C++`, `CUDA` or `assembly`.
        outcome: whether the cache had its object.
        detail: for a CUDA source, how many of nvcc's steps were reused; for a file that was not cached, why; else
            empty.

    """

    name: str
    language: str
    outcome: CacheOutcome
    detail: str = ""


@dataclass(frozen=True)
class CacheStatistics:
    """What the compiler cache did for one build.

    Attributes:
        files: each compiled source file, sorted by name.
        refused: why the cache was not used at all, or empty.
        unreadable: why it is unknown what the cache did, or empty.

    """

    files: tuple[SourceFile, ...] = ()
    refused: str = ""
    unreadable: str = ""

    def named(self, outcome: CacheOutcome) -> list[str]:
        """Names of the files with that outcome."""
        return [file.name for file in self.files if file.outcome is outcome]

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the store's record and report.json."""
        files = [
            {"name": file.name, "language": file.language, "outcome": str(file.outcome)}
            | ({"detail": file.detail} if file.detail else {})
            for file in self.files
        ]
        reasons = {"refused": self.refused, "unreadable": self.unreadable}
        return {"files": files} | {name: reason for name, reason in reasons.items() if reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CacheStatistics:
        """Read what `to_json` wrote; raises KeyError or ValueError on anything else."""
        files = (
            SourceFile(f["name"], f["language"], CacheOutcome(f["outcome"]), f.get("detail", "")) for f in data["files"]
        )
        return cls(tuple(files), data.get("refused", ""), data.get("unreadable", ""))

    def sentence(self) -> str:
        """One line for a person: how much was reused, and which files."""
        if self.refused:
            return f"compiler cache not used: {self.refused}"
        if self.unreadable:
            return f"objects: cannot tell how many were reused: {self.unreadable}"
        parts = []
        for outcome in CacheOutcome:
            if names := self.named(outcome):
                listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
                parts.append(f"{len(names)} {outcome} ({listed})")
        return f"objects: {'; '.join(parts)}" if parts else "objects: none compiled"
