"""Outcomes as text: grouped by cause, the same for every command and the report, and the table of a run of the gate."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.gate.amounts import grouped, join_names
from builder.gate.outcome import (
    ACCEPTED,
    FAILED,
    NOT_RUN,
    REMARK,
    Answer,
    Outcome,
    count_text,
    verdict_of,
    without_overload,
)

#: The kinds of causes in the order in which they are printed: what failed stands last.
KINDS = (NOT_RUN, ACCEPTED, REMARK, FAILED)
#: Causes of each kind that are printed without `every`: the end of a command about one wheel has at most 25 lines.
_MOST = {NOT_RUN: 5, ACCEPTED: 2, REMARK: 3, FAILED: 4}
#: With so many causes in all, each may have two lines.
_FEW = 6
#: What failed and what is remarked on has at most so many lines: its end says what to do.
_MOST_LINES = 12
#: The folder of an environment in an error of the loader.
_ENVIRONMENT = re.compile(r"(?<!\S)/\S*?/site-packages/")
#: Letters of names of checks that stand in a column of their own.
_COLUMN = 40


@dataclass(frozen=True)
class PlacedOutcome:
    """One outcome, and where it was found."""

    outcome: Outcome
    #: The cell; empty for what the file alone shows.
    cell: str = ""
    #: The build or the wheel, if a text is about several.
    wheel: str = ""


@dataclass(frozen=True)
class Cause:
    """Why something failed, did not run, is accepted or is remarked on, with everything that it affects."""

    kind: str
    #: One sentence, without op and case.
    reason: str
    #: Why the recipe accepts it, or empty.
    accepted: str
    #: Each once, in the order of the outcomes.
    checks: Sequence[str]
    #: Without "" for the extension as a whole.
    ops: Sequence[str]
    cases: Sequence[str]
    cells: Sequence[str]
    wheels: Sequence[str]


@dataclass(frozen=True)
class Causes:
    """The causes of some outcomes, and the ops and the cells of each wheel that they are about."""

    found: Sequence[Cause]
    ops: Mapping[str, Collection[str]]
    cells: Mapping[str, Collection[str]]
    #: Whether a cell is named even if it is the only one.
    name_cells: bool = False

    def of(self, kind: str) -> list[Cause]:
        """The causes of one kind."""
        return [cause for cause in self.found if cause.kind == kind]

    def sentences(self, kind: str) -> list[str]:
        """`linkage in 2 of 3 cells: REASON`, for each cause of a kind, with all that it affects."""
        found = [(_checks(one, every=True), self._place(one), self._text(one, every=True)) for one in self.of(kind)]
        return [f"{checks}{f' in {place}' if place else ''}: {text}" for checks, place, text in found]

    def lines(self, width: int, *, every: bool = False, kinds: Sequence[str] = KINDS) -> Iterator[str]:
        """`  not run   GPU           no GPU on this machine`: a line for each cause of these kinds, what failed last.

        `width` is that of the lines, in characters. With `every`, nothing is shortened and no cause is left out.
        """
        few = len(self.found) <= _FEW
        for kind in kinds:
            causes = self.of(kind)
            shown = causes if every or len(causes) <= _MOST[kind] else causes[: _MOST[kind] - 1]
            most = _MOST_LINES if every or kind in (FAILED, REMARK) else 2 if few else 1
            for cause in shown:
                text = ": ".join(filter(None, (self._place(cause), self._text(cause, every=every))))
                yield from line(kind, _checks(cause, every=every), text, width, most)
            if more := len(causes) - len(shown):
                hidden = _names(_distinct(one for cause in causes[len(shown) :] for one in cause.checks), every=every)
                yield from line(kind, f"{more} more", f"{hidden}: `--verbose` shows them", width)

    def _place(self, cause: Cause) -> str:
        """The wheels and the cells of a cause; empty if these are all."""
        parts = []
        if len(self.cells) > 1 and len(cause.wheels) < len(self.cells):
            parts.append(cause.wheels[0] if len(cause.wheels) == 1 else f"{len(cause.wheels)} of {len(self.cells)}")
        cells = {cell for wheel in cause.wheels for cell in self.cells[wheel]}
        if cause.cells and (self.name_cells or len(cause.cells) < len(cells)):
            few = len(cause.cells) == 1
            parts.append(cause.cells[0] if few else f"{len(cause.cells)} of {len(cells)} cells")
        return ": ".join(parts)

    def _text(self, cause: Cause, *, every: bool) -> str:
        """Ops and cases, the reason, and why it is accepted."""
        known = {op for wheel in cause.wheels for op in self.ops[wheel]}
        ops, cases = cause.ops, _names(cause.cases, every=every) if cause.kind == FAILED else ""
        if cause.kind == FAILED or every or len(ops) == 1:
            names = _names(ops, every=every)
        else:
            names = f"{len(ops)} of {len(known)} ops"
        if cause.kind != FAILED and (not ops or known <= set(ops)):
            names = ""  # it is about the file, or about all ops
        subject = f"{names} ({cases})" if names and cases else names or cases
        reason = cause.reason if every else _ENVIRONMENT.sub("", cause.reason)
        text = ": ".join(filter(None, (subject, reason or "no reason given")))
        return text + (f" (accepted: {cause.accepted})" if cause.accepted else "")


def causes_of(findings: Iterable[PlacedOutcome], *, name_cells: bool = False) -> Causes:
    """Group outcomes. Those that passed only say which ops and cells there are."""
    groups: dict[tuple[str, ...], list[PlacedOutcome]] = {}
    ops: dict[str, set[str]] = {}
    cells: dict[str, set[str]] = {}
    for finding in findings:
        one = finding.outcome
        ops.setdefault(finding.wheel, set()).update(filter(None, [one.op]))
        cells.setdefault(finding.wheel, set()).update(filter(None, [finding.cell]))
        kind = REMARK if one.verdict == NOT_RUN and one.remark else one.verdict
        if kind in KINDS:  # it has not passed
            # Every check of an op that crashes fails for the same cause.
            check = "" if kind == NOT_RUN or (kind == FAILED and one.op) else one.check
            groups.setdefault((kind, check, one.cause, one.accepted), []).append(finding)
    found = []
    for (kind, _, _, accepted), group in groups.items():
        outcomes = [each.outcome for each in group]
        checks, names, cases = (_distinct(getattr(one, name) for one in outcomes) for name in ("check", "op", "case"))
        places, wheels = _distinct(each.cell for each in group), list(dict.fromkeys(each.wheel for each in group))
        found.append(Cause(kind, outcomes[0].bare_reason, accepted, checks, names, cases, places, wheels))
    found.sort(key=lambda cause: (KINDS.index(cause.kind), -len(cause.checks) if cause.kind == NOT_RUN else 0))
    return Causes(found, ops, cells, name_cells)


def line(word: str, checks: str, text: str, width: int, most: int = 1) -> list[str]:
    """`  passed    tags          TEXT`, in at most `most` lines, without control characters; FAILED is in capitals."""
    shown = f"  {word.upper() if word == FAILED else word:<8}  "
    if len(checks) <= _COLUMN:
        shown = f"{shown}{checks:<12}  "
    elif text:
        text = f"{checks}: {text}"
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    form = textwrap.TextWrapper(max(width, 60), shown, " " * 12, break_on_hyphens=False, placeholder=" …")
    form.break_long_words = most == 1  # more lines have room for a whole path
    form.max_lines = most
    return form.wrap(plain) or [shown.rstrip()]


def _checks(cause: Cause, *, every: bool) -> str:
    return _names(_distinct("GPU" if one.startswith("gpu-") else one for one in cause.checks), every=every)


def _names(names: Sequence[str], *, every: bool) -> str:
    return ", ".join(names) if every else join_names(names)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, names)))


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
    by_op: dict[str, Sequence[Outcome]] = dict.fromkeys([*first, *ops, *named], ())
    by_op.update(grouped((one.op or WHOLE, one) for one in answer.outcomes))
    label = max(map(len, by_op), default=0)
    return [f"{op:<{label}}  {count_checks(outcomes, ())}" for op, outcomes in by_op.items()]


def count_checks(outcomes: Iterable[Outcome], checks: Iterable[str]) -> str:
    """Return how many of these checks have which verdict; each check counts once, as in the summary of `build`."""
    by_check: dict[str, Sequence[Outcome]] = dict.fromkeys(checks, ())
    by_check.update(grouped((one.check, one) for one in outcomes))
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
