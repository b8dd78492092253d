"""A proof: the recorded verdict of one check on a wheel, or on a wheel in one cell.

"Not run" and "accepted" are never "passed".
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from builder.check import Check
from builder.matrix.axes import Cell
from builder.untrusted import text

__all__ = ["PROOFS_SUFFIX", "Check", "Proof", "Verdict", "now", "proofs_json", "proofs_of", "proofs_path"]

#: The proofs of `x.whl` are in `x.whl.proofs.json`.
PROOFS_SUFFIX = ".proofs.json"


class Verdict(StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class Proof:
    """One verdict."""

    #: sha256 of the wheel file, hex.
    wheel: str
    #: The cell it applies to, or None for a check that reads the wheel file alone.
    cell: Cell | None
    check: Check
    verdict: Verdict
    #: For failed and not run a sentence with what to do; for accepted the finding; for passed a short figure or empty.
    reason: str = ""
    #: Data for programs (symbols, archs, files, versions, machine).
    evidence: dict[str, Any] = field(default_factory=dict)
    #: UTC time, ISO 8601, seconds.
    when: str = ""
    #: Digest of what the verdict depends on beside the wheel: claims, imports, the code of the checks. With a different
    #: basis the check runs again.
    basis: str = ""

    @property
    def has_run(self) -> bool:
        """Whether there is a verdict other than "not run"."""
        return self.verdict is not Verdict.NOT_RUN

    @property
    def remark(self) -> bool:
        """Whether a "not run" shows a gap of the tests that the author of the recipe can close."""
        return not self.has_run and bool(self.evidence.get("remark"))

    @property
    def accepted(self) -> str:
        """Why the recipe accepts the finding; empty for other verdicts."""
        return str(self.evidence.get("accepted", ""))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the store and for `--json`."""
        cell = str(self.cell) if self.cell else None
        return vars(self) | {"cell": cell, "check": str(self.check), "verdict": str(self.verdict)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError or ValueError for anything else."""
        return cls(
            **{name: text(data[name]) for name in ("wheel", "reason", "when", "basis")},
            cell=Cell.parse(data["cell"]) if data["cell"] else None,
            check=Check(data["check"]),
            verdict=Verdict(data["verdict"]),
            evidence=dict(data["evidence"]),
        )


def proofs_of(data: list[dict[str, Any]]) -> list[Proof]:
    """The proofs in plain data; raises as `Proof.from_json` for anything else."""
    return [Proof.from_json(entry) for entry in data]


def proofs_path(wheel: Path) -> Path:
    """The path of the file with the proofs beside a wheel."""
    return wheel.with_name(f"{wheel.name}{PROOFS_SUFFIX}")


def proofs_json(proofs: Iterable[Proof]) -> bytes:
    """The content of that file."""
    return (json.dumps([proof.to_json() for proof in proofs], indent=1) + "\n").encode()


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
