"""The verdicts of `verify` as Markdown: a table for each wheel, for a job summary or an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.gate.system.sizes import size_text
from builder.proofs.verify.judge import WheelVerdict
from builder.publish.proof_lines import remarks
from builder.publish.verify.verify_text import place, word


def verify_markdown(verdicts: Sequence[WheelVerdict]) -> str:
    """For each wheel a heading and a table of verdicts and remarks."""
    return "\n".join("\n".join(_lines(one)) + "\n" for one in verdicts)


def _lines(verdict: WheelVerdict) -> Iterator[str]:
    yield f"### {_cell(verdict.facts.filename)}"
    yield ""
    yield f"{size_text(verdict.facts.size)}, sha256 {verdict.facts.sha256}"
    yield ""
    yield "| verdict | check | finding |"
    yield "| --- | --- | --- |"
    for proof in verdict.proofs:
        shown = f"**{word(proof)}**" if word(proof).isupper() else word(proof)
        yield f"| {shown} | {proof.check} | {_cell(place(proof) + proof.reason)} |"
        for remark in remarks(proof):
            yield f"| remark | {proof.check} | {_cell(remark)} |"


def _cell(text: str) -> str:
    """Text of a stranger's wheel inside a table: no markup, no new column, no new line."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|#!" else letter for letter in text)
    return " ".join(escaped.split())
