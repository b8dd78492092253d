"""The verdicts of `verify` as SARIF 2.1.0, which code hosts show beside a change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from builder import __version__
from builder.check import Check
from builder.proof import Proof, Verdict
from builder.proofs.verify.judge import WheelVerdict
from builder.publish.proof_lines import remarks
from builder.publish.verify.verify_text import place

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def verify_sarif(verdicts: Sequence[WheelVerdict]) -> str:
    """A result for each failed check (`error`), each remark (`note`) and each check that did not run (`note`)."""
    results = [result for one in verdicts for proof in one.proofs for result in _results(one, proof)]
    used = {result["ruleId"] for result in results}
    rules = [{"id": str(check), "shortDescription": {"text": check.meaning}} for check in Check if str(check) in used]
    driver = {"name": "buildfarm verify", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _results(verdict: WheelVerdict, proof: Proof) -> Iterator[dict[str, Any]]:
    if proof.verdict is Verdict.FAILED:
        yield _result(verdict, proof, "error", f"{place(proof)}{proof.reason}")
    elif proof.verdict is Verdict.NOT_RUN:
        yield _result(verdict, proof, "note", f"not run: {place(proof)}{proof.reason}")
    for remark in remarks(proof):
        yield _result(verdict, proof, "note", remark)


def _result(verdict: WheelVerdict, proof: Proof, level: str, text: str) -> dict[str, Any]:
    location = {"physicalLocation": {"artifactLocation": {"uri": verdict.facts.filename}}}
    return {
        "ruleId": str(proof.check),
        "level": level,
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {"wheel": verdict.facts.sha256},
    }
