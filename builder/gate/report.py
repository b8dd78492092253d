"""An answer for people, as a table, and for CI, as JUnit XML. Pure, standard library only."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from builder.gate.outcome import CHECKS, FAILED, NOT_RUN, PASSED, Answer, Outcome

#: The row of what concerns no single op.
WHOLE = "(whole extension)"

#: Headings of the table: short, so that an op name of 39 letters and every check without a GPU fit 120 columns.
HEADINGS: Mapping[str, str] = {
    "ops": "ops",
    "dispatch": "keys",
    "import-order": "order",
    "values": "value",
    "gradients": "grad",
    "layouts": "layout",
    "edges": "edge",
    "repeat": "repeat",
    "memory": "mem",
    "opcheck": "opchk",
    "fake": "fake",
    "devices": "device",
    "export": "export",
    "compile": "comp",
    "gpu-values": "g:value",
    "gpu-stream": "g:stream",
    "gpu-graph": "g:graph",
    "gpu-device": "g:device",
    "gpu-sanitizer": "g:sanit",
}

_LEGEND = "ok: all passed   part: some passed, the others not run   FAIL: some failed   -: not run   blank: not asked"
_NAMED = 6  # names in a list before "and N more"; --json has them all
_LINES = 12  # of one reason
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def table(name: str, answer: Answer, width: int = 120) -> str:
    """The whole answer as text: where, a row for each op, each failure, and what was not run and why.

    Args:
        name: the extension.
        answer: of any run, whole or cut short.
        width: columns; a narrow one splits the table into blocks of checks.

    """
    parts = [
        [f"{name}: {_count(answer.outcomes)}", *_where(answer.where)],
        *_grid(answer, width),
        _failures(answer.outcomes, width),
        _not_run(answer, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def junit(suites: Mapping[str, Answer]) -> str:
    """Answers as JUnit XML: a suite each, a testcase for each outcome, "not run" as skipped with its reason."""
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
        skipped=str(sum(one.verdict == NOT_RUN for one in outcomes)),
        time=f"{sum(one.seconds for one in outcomes):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in answer.where.items():
        said = value if isinstance(value, str) else _json(value)
        ElementTree.SubElement(properties, "property", name=_xml(key), value=_xml(said))
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
        elif one.verdict == NOT_RUN:
            ElementTree.SubElement(testcase, "skipped", message=_xml(one.reason))


def _count(outcomes: Sequence[Outcome]) -> str:
    """How many of each verdict: "214 passed, 0 failed, 31 not run"."""
    if not outcomes:
        return "nothing was asked"
    return ", ".join(f"{sum(one.verdict == verdict for one in outcomes)} {verdict}" for verdict in _VERDICTS)


_VERDICTS = (PASSED, FAILED, NOT_RUN)


def _where(where: Mapping[str, Any]) -> list[str]:
    """The line of the machine, and one for each GPU."""
    known = [("torch", "torch"), ("cuda", "CUDA"), ("python", "Python"), ("glibc", "glibc"), ("machine", "")]
    facts = [f"{label} {where[key]}".strip() for key, label in known if where.get(key)]
    gpus = where.get("gpus") or []
    lines = [", ".join([*facts, *([] if gpus else ["no GPU"])])]
    for number, gpu in enumerate(gpus):
        said = [str(gpu.get("name", "GPU"))]
        said += [str(gpu["sm"])] if gpu.get("sm") else []
        said += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
        said += [f"SM clock {gpu['clock']}"] if gpu.get("clock") else []
        lines.append(f"GPU {number}: " + ", ".join(said))
    return lines


def _grid(answer: Answer, width: int) -> list[list[str]]:
    """Blocks of a legend and rows; a check that ran nowhere has no column, it is named under "not run"."""
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
        heading = " " * label + "".join(f" {_heading(check):<{_wide(check)}}" for check in block)
        lines = [heading.rstrip()]
        for row in rows:
            said = "".join(f" {_cell(cells.get((row, check), [])):<{_wide(check)}}" for check in block)
            lines.append(f"{row:<{label}}{said}".rstrip())
        blocks.append(lines)
    blocks[-1].append(_LEGEND)
    return blocks


def _rows(answer: Answer) -> list[str]:
    """What concerns the whole first, then the ops as discovered, then what only an outcome names."""
    named = list(dict.fromkeys(one.op or WHOLE for one in answer.outcomes))
    first = [WHOLE] if WHOLE in named else []
    discovered = [_row_of(op, named) for op in answer.ops]
    return list(dict.fromkeys([*first, *discovered, *named]))


def _row_of(op: str, named: Sequence[str]) -> str:
    """A case may name an op without its overload: then both are one row."""
    bare = op.rsplit(".", 1)[0] if "::" in op else op
    return bare if op not in named and bare in named else op


def _heading(check: str) -> str:
    return HEADINGS.get(check, check)


def _wide(check: str) -> int:
    return max(4, len(_heading(check)))


def _blocks(checks: Sequence[str], room: int) -> list[list[str]]:
    """As many checks a block as fit into the room, one at least."""
    blocks: list[list[str]] = [[]]
    used = 0
    for check in checks:
        if blocks[-1] and used + 1 + _wide(check) > room:
            blocks.append([])
            used = 0
        blocks[-1].append(check)
        used += 1 + _wide(check)
    return blocks


def _cell(verdicts: Sequence[str]) -> str:
    if not verdicts:
        return ""
    if FAILED in verdicts:
        return "FAIL"
    if PASSED not in verdicts:
        return "-"
    return "part" if NOT_RUN in verdicts else "ok"


def _failures(outcomes: Sequence[Outcome], width: int) -> list[str]:
    """Each failure once: cases of one op that fail alike share a sentence."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in outcomes:
        if one.verdict == FAILED:
            alike.setdefault((one.check, one.op, _said(one)), []).append(one.case)
    if not alike:
        return []
    lines = [f"FAILED ({sum(one.verdict == FAILED for one in outcomes)})"]
    for (check, op, said), cases in alike.items():
        named = [case for case in dict.fromkeys(cases) if case]
        subject = f"{op} ({_list(named)})" if op and named else op or _list(named)
        lines += _wrapped(": ".join(part for part in (check, subject, said) if part), "  ", "      ", width)
    return lines


def _said(one: Outcome) -> str:
    """The reason without the op and the case, where it begins with them: the line begins with them too."""
    said = one.reason or "no reason was given"
    for subject in (f"{one.op} ({one.case}): ", f"{one.op}: "):
        if said.startswith(subject):
            return said[len(subject) :]
    return said


def _not_run(answer: Answer, width: int) -> list[str]:
    """By reason; under each, the checks and whose."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for one in answer.outcomes:
        if one.verdict == NOT_RUN:
            ops = by_reason.setdefault(one.reason or "no reason was given", {}).setdefault(one.check, [])
            if (one.op or WHOLE) not in ops:
                ops.append(one.op or WHOLE)
    if not by_reason:
        return []
    everyone = [row for row in _rows(answer) if row != WHOLE]
    lines = [f"NOT RUN ({sum(one.verdict == NOT_RUN for one in answer.outcomes)})"]
    for reason, by_check in by_reason.items():
        lines += _wrapped(reason, "  ", "  ", width)
        whose: dict[str, list[str]] = {}
        for check, ops in by_check.items():
            every = len(everyone) > 1 and set(everyone) <= set(ops)
            whose.setdefault("every op" if every else _list(ops), []).append(check)
        for ops_said, checks in whose.items():
            lines += _wrapped(f"{', '.join(checks)}: {ops_said}", "      ", "          ", width)
    return lines


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    """Folded to the width; what a terminal would obey instead of showing is left out."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.wrap(
        " ".join(plain.split()),
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        max_lines=_LINES,
        break_on_hyphens=False,
        placeholder=" ...",
    )


def _evidence(evidence: Mapping[str, Any]) -> Iterable[str]:
    """One entry a paragraph: text as it is, so that a stack stays readable, anything else as JSON."""
    for key, value in evidence.items():
        yield f"\n{key}:\n{value}" if isinstance(value, str) else f"\n{key}: {_json(value)}"


def _json(value: Any) -> str:  # noqa: ANN401
    return json.dumps(value, default=str, ensure_ascii=False)


def _xml(text: Any) -> str:  # noqa: ANN401
    """Without the characters that XML 1.0 cannot hold in any spelling (escape codes, NUL, half a surrogate pair)."""
    return _NOT_XML.sub("?", str(text))
