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

    def matches(self, one: Outcome, cell: str) -> bool:
        """Whether the entry is about this outcome of this cell, or of the wheel file if `cell` is empty."""
        names = (one.op, without_overload(one.op)) if one.op else (one.case,)
        in_cell = not self.cell or fnmatchcase(cell, self.cell)
        return self.check == one.check and in_cell and (not self.op or self.op in names)


def accept(outcomes: Sequence[Outcome], entries: Sequence[Accept], cell: str) -> list[Outcome]:
    """Return the outcomes with each accepted finding marked. A finding is a failed outcome or a remark."""
    judged = []
    for one in map(finding, outcomes):
        reasons = [entry.reason for entry in entries if entry.matches(one, cell)]
        if reasons and (one.verdict == FAILED or one.remark):
            one = replace(one, verdict=ACCEPTED, accepted=reasons[0])  # noqa: PLW2901
        judged.append(one)
    return judged


def finding(one: Outcome) -> Outcome:
    """Return the outcome as it was before it was accepted."""
    return replace(one, verdict=NOT_RUN if one.remark else FAILED, accepted="") if one.verdict == ACCEPTED else one


def cell_name(where: dict[str, Any]) -> str:
    """Return the name of the cell that the gate runs in, such as torch2.11.0-cu130-cp312."""
    torch = str(where.get("torch") or "").partition("+")[0]
    cuda = str(where.get("cuda") or "").replace(".", "")
    python = "".join(str(where.get("python") or "").split(".")[:2])
    return f"torch{torch}-cu{cuda}-cp{python}"
