"""What `verify` prints: a table of verdicts for each wheel."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from builder.gate.system.sizes import size_text
from builder.proof import Proof, Verdict
from builder.proofs.verify.judge import WheelVerdict
from builder.publish.proof_lines import counts, remarks

#: Sentences of a reason to print.
_MOST = 4


def verify_text(verdicts: Sequence[WheelVerdict]) -> str:
    """For each wheel its name and size, then a line for each check and each remark."""
    return "\n".join("\n".join(_wheel_lines(one)) + "\n" for one in verdicts)


def _wheel_lines(verdict: WheelVerdict) -> Iterator[str]:
    facts = verdict.facts
    yield f"{facts.filename}  {size_text(facts.size)}: {counts(verdict.proofs)}"
    for proof in verdict.proofs:
        yield f"  {word(proof):<8}  {proof.check:<12}  {place(proof)}{_shortened(proof.reason)}".rstrip()
        if sizes := proof.evidence.get("sizes"):
            yield f"  {'':<8}  {'':<12}  {', '.join(f'{code} {size_text(size)}' for code, size in sizes.items())}"
        for remark in remarks(proof):
            yield f"  {'remark':<8}  {proof.check:<12}  {remark}"


def word(proof: Proof) -> str:
    """The verdict as a word; a failure is in capitals."""
    return "FAILED" if proof.verdict is Verdict.FAILED else str(proof.verdict)


def _shortened(reason: str) -> str:
    """The first sentences of a reason, and the number of the others."""
    parts = reason.split("; ")
    more = len(parts) - _MOST
    return f"{'; '.join(parts[:_MOST])}; and {more} more, which --json prints" if more > 1 else reason


def place(proof: Proof) -> str:
    """The cell of a proof, as the start of a sentence; empty for a proof of the file."""
    return f"{proof.cell}: " if proof.cell else ""


def verify_json(verdicts: Sequence[WheelVerdict]) -> str:
    """Everything about each wheel."""
    data = [
        {
            "wheel": one.facts.filename,
            "sha256": one.facts.sha256,
            "origin": one.origin,
            "failed": one.failed,
            "proofs": [proof.to_json() for proof in one.proofs],
        }
        for one in verdicts
    ]
    return json.dumps(data, indent=1) + "\n"
