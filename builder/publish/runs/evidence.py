"""The evidence of a proof as text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builder.publish.runs.plain import plain

#: Characters of the evidence of one proof that are shown; `buildfarm report --json` has all.
LONGEST = 6000


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """The outcomes of the op gate, a line each, then the other data as JSON; cut at LONGEST characters."""
    lines = [_outcome(one) for one in evidence.get("outcomes", ()) if isinstance(one, dict)]
    rest = {key: value for key, value in evidence.items() if key != "outcomes"}
    if rest:
        lines += json.dumps(rest, indent=1, ensure_ascii=False).splitlines()
    text = plain("\n".join(lines))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… ({len(text) - LONGEST} more characters; `buildfarm report --json` prints all)"


def _outcome(outcome: Mapping[str, Any]) -> str:
    """`passed  ns::op (case): reason (1.2 s)`, then what the evidence says, indented."""
    case = f" ({outcome['case']})" if outcome.get("case") else ""
    what = f"{outcome.get('op') or 'all ops'}{case}"
    reason = str(outcome.get("reason", "")).removeprefix(f"{what}: ")
    line = f"{outcome.get('verdict', '')}  {what}" + (f": {reason}" if reason else "")
    details = outcome.get("evidence")
    if outcome.get("verdict") == "passed" or not details:
        return line
    return "\n".join(
        [line, *(f"    {text}" for text in json.dumps(details, indent=1, ensure_ascii=False).splitlines())]
    )
