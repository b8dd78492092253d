"""Findings that a recipe accepts: they are reported with the reason, never as passed. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from builder.gate.coverage import without_overload
from builder.gate.outcome import ACCEPTED, FAILED, NOT_RUN, Outcome


@dataclass(frozen=True)
class Accept:
    """One entry of `accepts` in a recipe. A finding is accepted if every key that the entry gives matches it."""

    check: str
    reason: str
    #: An op, with or without its overload; for the check "loaded" the path of a library; empty: every op.
    op: str = ""
    #: Pattern of cell names; empty: every cell.
    cell: str = ""

    def concerns(self, check: str, cell: str) -> bool:
        """Whether the entry is about this check in this cell, or about the wheel file if `cell` is empty."""
        return self.check == check and (not self.cell or fnmatchcase(cell, self.cell))

    def matches(self, one: Outcome, cell: str) -> bool:
        """Whether the entry is about this outcome."""
        names = (one.op, without_overload(one.op)) if one.op else (one.case,)
        return self.concerns(one.check, cell) and (not self.op or self.op in names)


def accept(outcomes: Sequence[Outcome], entries: Sequence[Accept], cell: str) -> tuple[list[Outcome], set[int]]:
    """Return the outcomes with each accepted finding marked, and the indices of the entries that accepted one.

    A finding is a failed outcome or a remark.
    """
    used: set[int] = set()
    judged = []
    for one in map(finding, outcomes):
        entry = next((index for index, entry in enumerate(entries) if entry.matches(one, cell)), None)
        if entry is not None and (one.verdict == FAILED or one.remark):
            used.add(entry)
            one = replace(one, verdict=ACCEPTED, accepted=entries[entry].reason)  # noqa: PLW2901
        judged.append(one)
    return judged, used


def finding(one: Outcome) -> Outcome:
    """Return the outcome as it was before it was accepted."""
    return replace(one, verdict=NOT_RUN if one.remark else FAILED, accepted="") if one.verdict == ACCEPTED else one


def cell_name(where: dict[str, Any]) -> str:
    """Return the name of the cell that the gate runs in, such as torch2.11.0-cu130-cp312."""
    torch = str(where.get("torch") or "").partition("+")[0]
    cuda = str(where.get("cuda") or "").replace(".", "")
    python = "".join(str(where.get("python") or "").split(".")[:2])
    return f"torch{torch}-cu{cuda}-cp{python}"
