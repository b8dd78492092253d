"""Renders an answer as a table for the terminal and as JUnit XML for CI. Pure, standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from builder.gate.causes import PlacedOutcome, causes_of
from builder.gate.coverage import without_overload
from builder.gate.outcome import ACCEPTED, FAILED, NOT_RUN, REMARK, Answer, Outcome, count_text, verdict_of

#: The row for outcomes that are about the extension and not about one op.
WHOLE = "(whole extension)"

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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


def junit(suites: Mapping[str, Answer]) -> str:
    """Return answers as JUnit XML: a suite for each answer, a testcase for each outcome; "not run" is "skipped"."""
    root = ElementTree.Element("testsuites")
    for name, answer in suites.items():
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
                lines = [one.reason]
                for key, value in one.evidence.items():  # text stays as it is, so that a stack is readable
                    lines.append(f"\n{key}:\n{value}" if isinstance(value, str) else f"\n{key}: {_json(value)}")
                failure.text = _xml("\n".join(lines))
            elif one.verdict in (NOT_RUN, ACCEPTED):
                message = f"accepted: {one.accepted}; the finding: {one.reason}" if one.accepted else one.reason
                ElementTree.SubElement(testcase, "skipped", message=_xml(message))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


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
        facts = [str(gpu.get("name", "GPU"))]
        facts += [str(gpu["sm"])] if gpu.get("sm") else []
        facts += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
        lines.append(f"GPU {number}: " + ", ".join(facts))
    return lines


def _json(value: Any) -> str:  # noqa: ANN401
    return json.dumps(value, default=str, ensure_ascii=False)


def _xml(text: Any) -> str:  # noqa: ANN401
    """Replace the characters that XML 1.0 cannot contain (control codes, NUL, unpaired surrogates)."""
    return _NOT_XML.sub("?", str(text))
