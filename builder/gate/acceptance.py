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

    #: Name of the check.
    check: str
    #: Why the finding is accepted.
    reason: str
    #: An op, with or without its overload; for the check "loaded" the path of a library; empty: every op.
    op: str = ""
    #: Modules; an import order matches if it contains them in this order; empty: every order.
    order: Sequence[str] = ()
    #: Pattern of cell names; empty: every cell.
    cell: str = ""

    def concerns(self, check: str, cell: str) -> bool:
        """Whether the entry is about this check in this cell, or about the wheel file if `cell` is empty."""
        return self.check == check and (not self.cell or fnmatchcase(cell, self.cell))

    def matches(self, one: Outcome, cell: str) -> bool:
        """Whether the entry is about this outcome, apart from the import orders."""
        names = (one.op, without_overload(one.op)) if one.op else (one.case,)
        return self.concerns(one.check, cell) and (not self.op or self.op in names)

    def covers(self, order: Sequence[str]) -> bool:
        """Whether the entry is about this import order."""
        rest = iter(order)
        return all(name in rest for name in self.order)


def accept(outcomes: Sequence[Outcome], entries: Sequence[Accept], cell: str) -> tuple[list[Outcome], set[int]]:
    """Return the outcomes with each accepted finding marked, and the indices of the entries that accepted one.

    A finding is a failed outcome or a remark. Import orders are accepted if entries cover every order that failed.
    """
    used: set[int] = set()
    judged = []
    for one in map(finding, outcomes):
        about = [index for index, entry in enumerate(entries) if entry.matches(one, cell)]
        if not about or not (one.verdict == FAILED or one.remark):
            judged.append(one)
            continue
        # The import orders that failed, or one empty order for an outcome that is about no order.
        ended: dict[str, str] = one.evidence.get("orders", {})
        orders: list[Sequence[str]] = [name.split(", ") for name, end in ended.items() if end != "works"] or [()]
        chosen = [next((index for index in about if entries[index].covers(order)), -1) for order in orders]
        used.update(index for index in chosen if index >= 0)
        if -1 in chosen:
            judged.append(one)
            continue
        reasons = dict.fromkeys(entries[index].reason for index in chosen)
        judged.append(replace(one, verdict=ACCEPTED, accepted="; ".join(reasons)))
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
