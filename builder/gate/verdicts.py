"""What becomes of outcomes once they are all there, and of checks that were never begun. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from builder.gate.journal import Record
from builder.gate.outcome import CHECKS, FAILED, NOT_RUN, Outcome, Spec
from builder.gate.tasks import TABLE


def unasked(spec: Spec, reason: str, *, whole: bool) -> list[Outcome]:
    """A "not run" for each check of the table that is wanted, those of the whole extension only on demand."""
    wanted = [check for check in TABLE if not spec.checks or check.name in spec.checks]
    return [Outcome(check.name, "", "", NOT_RUN, reason) for check in wanted if whole or not check.whole]


def no_gpu(where: dict[str, Any], record: Record) -> str:
    """Why the checks of a GPU are not run, or nothing."""
    if where.get("gpus"):
        return ""
    failed = [outcome.reason for outcome in record.outcomes if outcome.verdict == FAILED]
    if failed:
        return f"asking for the GPU fails: {failed[0]}"
    if where.get("cuda") is None:
        return "torch here is a CPU build"
    return str(where.get("no_gpu") or "no GPU on this machine")


def joined(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The bits of "repeat" and "memory", found in two processes, must be the same too."""
    guarded = {(one.op, one.case): one.evidence.get("bits") for one in outcomes if one.check == "memory"}
    found = []
    for one in outcomes:
        bits, others = one.evidence.get("bits"), guarded.get((one.op, one.case))
        if one.check == "repeat" and one.verdict != NOT_RUN and bits and others and bits != others:
            reason = "another process gives other bits for the same input: it reads memory it never wrote, or a clock"
            one = replace(one, verdict=FAILED, reason=reason)  # noqa: PLW2901
        found.append(one)
    return found


def ordered(outcomes: Sequence[Outcome], ops: Sequence[str]) -> list[Outcome]:
    """In the order of CHECKS, then of the ops, then of the cases' names."""
    checks, names = list(CHECKS), {"": -1, **{op: index for index, op in enumerate(ops)}}
    return sorted(outcomes, key=lambda one: (checks.index(one.check), names.get(one.op, len(names)), one.op, one.case))
