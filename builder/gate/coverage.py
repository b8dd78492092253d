"""Whether every op has a case, and every case an op. Plain data; torch is not imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome
from builder.gate.tasks import CaseFacts


def covered(ops: Sequence[str], cases: Sequence[CaseFacts]) -> list[Outcome]:
    """One outcome of "ops" for each op discovered and each case that names none.

    A case of `ns::op` covers that very op, and its only overload where it has one; a case of `ns::op.overload` that.
    """
    named = [_only_overload(case.op, ops) for case in cases]
    outcomes = []
    for op in ops:
        count = named.count(op)
        if count:
            outcomes.append(Outcome("ops", op, "", PASSED, f"{count} case{'s' if count > 1 else ''}"))
        else:
            outcomes.append(
                Outcome("ops", op, "", FAILED, "nobody wrote a case for it: add a Case of this op to cases.py")
            )
    outcomes += [
        Outcome("ops", case.op, case.name, FAILED, f"a case of cases.py cannot be called: {case.missing}")
        for case in _first_of_each(case for case in cases if case.missing)
    ]
    seen = set()
    for case in cases:
        if (case.op, case.name) in seen:
            reason = "two cases of this op have this name: give each its own, so that a fault can be found"
            outcomes.append(Outcome("ops", case.op, case.name, FAILED, reason))
        seen.add((case.op, case.name))
    return outcomes


def edges(cases: Sequence[CaseFacts]) -> list[Outcome]:
    """A word for each op that no case tries with empty input."""
    with_empty = {case.op for case in cases if case.edge == "empty"}
    return [
        Outcome("edges", case.op, "", NOT_RUN, 'no case has edge="empty"')
        for case in _first_of_each(case for case in cases if case.op not in with_empty)
    ]


def _only_overload(op: str, ops: Sequence[str]) -> str:
    if op in ops or "::" not in op:
        return op
    overloads = [one for one in ops if one.partition(".")[0] == op]
    return overloads[0] if len(overloads) == 1 else op


def _first_of_each(cases: Iterable[CaseFacts]) -> list[CaseFacts]:
    found: dict[str, CaseFacts] = {}
    for case in cases:
        found.setdefault(case.op, case)
    return list(found.values())
