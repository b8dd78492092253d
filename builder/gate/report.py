"""Renders an answer as a table for the terminal and as JUnit XML for CI. Pure, standard library only."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from builder.gate.check_table import CHECKS
from builder.gate.coverage import without_overload
from builder.gate.outcome import (
    ACCEPTED,
    FAILED,
    NOT_RUN,
    PASSED,
    REMARK,
    Answer,
    Outcome,
    count_text,
    verdict_of,
)

#: The row for outcomes that are about the extension and not about one op.
WHOLE = "(whole extension)"

_LEGEND = (
    "ok: all passed   part: some passed, others not run   FAIL: some failed   acc: a finding is accepted   "
    "-: not run   blank: not applicable"
)
_MAX_NAMES = 6  # names in a list before "and N more"; --json has all of them
_MAX_LINES = 12  # lines of one reason
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def table(title: str, answer: Answer, width: int = 120) -> str:
    """Return the answer as text: the machine, a row for each op, each failure, and what was not run and why.

    Args:
        title: the first line: what was tested, and the counts.
        answer: the answer of a run.
        width: of the text in characters; if the checks do not fit, the table is split into blocks.

    """
    parts = [
        [title, *_where(answer.where)],
        *_grid(answer, width),
        _listed("REMARKS", [one for one in answer.outcomes if one.remark and one.verdict == NOT_RUN], width),
        _listed("FAILED", [one for one in answer.outcomes if one.verdict == FAILED], width),
        _listed("ACCEPTED", [one for one in answer.outcomes if one.verdict == ACCEPTED], width),
        _not_run(answer, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def junit(suites: Mapping[str, Answer]) -> str:
    """Return answers as JUnit XML: a suite for each answer, a testcase for each outcome; "not run" is "skipped"."""
    root = ElementTree.Element("testsuites")
    for name, answer in suites.items():
        _suite(root, name, answer)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, name: str, answer: Answer) -> None:
    outcomes = answer.outcomes
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=_xml(name),
        tests=str(len(outcomes)),
        failures=str(sum(one.verdict == FAILED for one in outcomes)),
        errors="0",
        skipped=str(sum(one.verdict in (NOT_RUN, ACCEPTED) for one in outcomes)),
        time=f"{sum(one.seconds for one in outcomes):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in answer.where.items():
        text = value if isinstance(value, str) else _json(value)
        ElementTree.SubElement(properties, "property", name=_xml(key), value=_xml(text))
    for one in outcomes:
        testcase = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_xml(one.op or WHOLE),
            name=_xml(f"{one.check}: {one.case}" if one.case else one.check),
            time=f"{one.seconds:.3f}",
        )
        if one.verdict == FAILED:
            failure = ElementTree.SubElement(testcase, "failure", message=_xml(one.reason))
            failure.text = _xml("\n".join([one.reason, *_evidence(one.evidence)]))
        elif one.verdict in (NOT_RUN, ACCEPTED):
            message = f"accepted: {one.accepted}; the finding: {one.reason}" if one.accepted else one.reason
            ElementTree.SubElement(testcase, "skipped", message=_xml(message))


def count_checks(outcomes: Iterable[Outcome], checks: Iterable[str]) -> str:
    """Return how many of these checks have which verdict; each check counts once, as in the summary of `build`."""
    by_check: dict[str, list[Outcome]] = {check: [] for check in checks}
    for one in outcomes:
        by_check.setdefault(one.check, []).append(one)
    return count_text(
        REMARK if verdict_of(found) == NOT_RUN and any(one.remark for one in found) else verdict_of(found)
        for found in by_check.values()
    )


def _where(where: Mapping[str, Any]) -> list[str]:
    """Return a line for the machine, and a line for each GPU."""
    known = [("torch", "torch"), ("cuda", "CUDA"), ("python", "Python"), ("glibc", "glibc"), ("machine", "")]
    facts = [f"{label} {where[key]}".strip() for key, label in known if where.get(key)]
    if not facts:
        return []  # torch was not imported
    gpus = where.get("gpus") or []
    lines = [", ".join([*facts, *([] if gpus else ["no GPU"])])]
    for number, gpu in enumerate(gpus):
        facts = [str(gpu.get("name", "GPU"))]
        facts += [str(gpu["sm"])] if gpu.get("sm") else []
        facts += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
        facts += [f"SM clock {gpu['clock']}"] if gpu.get("clock") else []
        lines.append(f"GPU {number}: " + ", ".join(facts))
    return lines


def _grid(answer: Answer, width: int) -> list[list[str]]:
    """Return the table in blocks of columns. A check that ran for no op has no column; "NOT RUN" lists it."""
    cells: dict[tuple[str, str], list[str]] = {}
    for one in answer.outcomes:
        cells.setdefault((one.op or WHOLE, one.check), []).append(one.verdict)
    rows = _rows(answer)
    ran = {one.check for one in answer.outcomes if one.verdict != NOT_RUN}
    columns = [check for check in CHECKS if check in ran] + sorted(ran.difference(CHECKS))
    if not rows or not columns:
        return []
    label = max(len(row) for row in rows)
    blocks: list[list[str]] = []
    for block in _blocks(columns, width - label):
        heading = " " * label + "".join(f" {_heading(check):<{_column_width(check)}}" for check in block)
        lines = [heading.rstrip()]
        for row in rows:
            marks = "".join(f" {_cell(cells.get((row, check), [])):<{_column_width(check)}}" for check in block)
            if row == WHOLE and not marks.strip():
                continue
            lines.append(f"{row:<{label}}{marks}".rstrip())
        blocks.append(lines)
    blocks[-1] += textwrap.wrap(_LEGEND, max(width, 40))
    return blocks


def _rows(answer: Answer) -> list[str]:
    """Return the extension's row first, then the discovered ops, then names that only outcomes have."""
    named = list(dict.fromkeys(one.op or WHOLE for one in answer.outcomes))
    first = [WHOLE] if WHOLE in named else []
    discovered = [_row_of(op, named) for op in answer.ops]
    return list(dict.fromkeys([*first, *discovered, *named]))


def _row_of(op: str, named: Sequence[str]) -> str:
    """Return the row of a discovered op: if cases name it without its overload, the name without it."""
    bare = without_overload(op)
    return bare if op not in named and bare in named else op


def _heading(check: str) -> str:
    return CHECKS[check].title if check in CHECKS else check


def _column_width(check: str) -> int:
    return max(4, len(_heading(check)))


def _blocks(checks: Sequence[str], width: int) -> list[list[str]]:
    """Split the checks into blocks whose columns fit into the width; each block has at least one check."""
    blocks: list[list[str]] = [[]]
    used = 0
    for check in checks:
        if blocks[-1] and used + 1 + _column_width(check) > width:
            blocks.append([])
            used = 0
        blocks[-1].append(check)
        used += 1 + _column_width(check)
    return blocks


def _cell(verdicts: Sequence[str]) -> str:
    if not verdicts:
        return ""
    if FAILED in verdicts:
        return "FAIL"
    if ACCEPTED in verdicts:
        return "acc"
    if PASSED not in verdicts:
        return "-"
    return "part" if NOT_RUN in verdicts else "ok"


def _listed(title: str, outcomes: Sequence[Outcome], width: int) -> list[str]:
    """Return each finding once, with its cases or libraries, and why it is accepted.

    Failures of one op with the same cause, such as a crash, share one entry for all checks.
    """
    alike: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for one in outcomes:
        check = "" if one.op and one.verdict == FAILED else one.check
        alike.setdefault((check, one.op, one.cause, one.accepted), []).append(one)
    lines = [title] if outcomes else []
    for (_, op, _, accepted), group in alike.items():
        checks = ", ".join(dict.fromkeys(one.check for one in group))
        cases = _list([case for case in dict.fromkeys(one.case for one in group) if case])
        subject = f"{op} ({cases})" if op and cases else op or cases
        text = ": ".join(part for part in (checks, subject, group[0].bare_reason or "no reason given") if part)
        lines += _wrapped(text + (f" (accepted: {accepted})" if accepted else ""), "  ", "      ", width)
    return lines


def _not_run(answer: Answer, width: int) -> list[str]:
    """Return the reasons; under each reason the checks and their ops."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for one in answer.outcomes:
        if one.verdict == NOT_RUN and not one.remark:
            ops = by_reason.setdefault(one.reason or "no reason given", {}).setdefault(one.check, [])
            if (one.op or WHOLE) not in ops:
                ops.append(one.op or WHOLE)
    if not by_reason:
        return []
    all_ops = [row for row in _rows(answer) if row != WHOLE]
    lines = ["NOT RUN"]
    for reason, by_check in by_reason.items():
        lines += _wrapped(reason, "  ", "  ", width)
        by_ops: dict[str, list[str]] = {}
        for check, ops in by_check.items():
            every = len(all_ops) > 1 and set(all_ops) <= set(ops)
            by_ops.setdefault("every op" if every else _list(ops), []).append(check)
        for names, checks in by_ops.items():
            lines += _wrapped(f"{', '.join(checks)}: {names}", "      ", "          ", width)
    return lines


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    """Wrap the text to the width, without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.wrap(
        " ".join(plain.split()),
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        max_lines=_MAX_LINES,
        break_on_hyphens=False,
        placeholder=" ...",
    )


def _evidence(evidence: Mapping[str, Any]) -> Iterable[str]:
    """Return a paragraph for each entry: text unchanged, so that a stack stays readable, anything else as JSON."""
    for key, value in evidence.items():
        yield f"\n{key}:\n{value}" if isinstance(value, str) else f"\n{key}: {_json(value)}"


def _json(value: Any) -> str:  # noqa: ANN401
    return json.dumps(value, default=str, ensure_ascii=False)


def _xml(text: Any) -> str:  # noqa: ANN401
    """Replace the characters that XML 1.0 cannot contain (control codes, NUL, unpaired surrogates)."""
    return _NOT_XML.sub("?", str(text))
