"""Renders an answer as a table for the terminal. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from builder.gate.causes import PlacedOutcome, causes_of
from builder.gate.coverage import without_overload
from builder.gate.outcome import NOT_RUN, REMARK, Answer, Outcome, count_text, verdict_of

#: The row for outcomes that are about the extension and not about one op.
WHOLE = "(whole extension)"


def table(title: str, answer: Answer) -> str:
    """Return the answer as text: the machine, a line for each op, what was not run and why, and last what failed.

    `title` is the first line: what was tested, and the counts.
    """
    causes = causes_of(PlacedOutcome(one) for one in answer.outcomes)
    parts = [[title, *where_lines(answer.where)], op_lines(answer), [*causes.lines(120, every=True)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def op_lines(answer: Answer) -> list[str]:
    """Return a line for each op: how many of its checks have which verdict."""
    # The extension's row is first, then the discovered ops, then names that only outcomes have. If cases name an op
    # without its overload, so does its row.
    named = list(dict.fromkeys(one.op or WHOLE for one in answer.outcomes))
    first = [WHOLE] if WHOLE in named else []
    ops = [op if op in named or without_overload(op) not in named else without_overload(op) for op in answer.ops]
    by_op: dict[str, list[Outcome]] = {op: [] for op in [*first, *ops, *named]}
    for one in answer.outcomes:
        by_op[one.op or WHOLE].append(one)
    label = max(map(len, by_op), default=0)
    return [f"{op:<{label}}  {count_checks(outcomes, ())}" for op, outcomes in by_op.items()]


def count_checks(outcomes: Iterable[Outcome], checks: Iterable[str]) -> str:
    """Return how many of these checks have which verdict; each check counts once, as in the summary of `build`."""
    by_check: dict[str, list[Outcome]] = {check: [] for check in checks}
    for one in outcomes:
        by_check.setdefault(one.check, []).append(one)
    return count_text(
        REMARK if verdict_of(found) == NOT_RUN and any(one.remark for one in found) else verdict_of(found)
        for found in by_check.values()
    )


def where_lines(where: Mapping[str, Any]) -> list[str]:
    """Return a line for the machine, and a line for each GPU."""
    known = [("torch", "torch"), ("cuda", "CUDA"), ("python", "Python"), ("glibc", "glibc"), ("machine", "")]
    facts = [f"{label} {where[key]}".strip() for key, label in known if where.get(key)]
    if not facts:
        return []  # torch was not imported
    gpus = where.get("gpus") or []
    lines = [", ".join([*facts, *([] if gpus else ["no GPU"])])]
    for number, gpu in enumerate(gpus):
        driver = f"driver {gpu['driver']}" if gpu.get("driver") else ""
        lines.append(f"GPU {number}: " + ", ".join(filter(None, (gpu.get("name"), gpu.get("sm"), driver))))
    return lines
