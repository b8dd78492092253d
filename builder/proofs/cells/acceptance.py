"""Applies the recipe's `accepts` to proofs, new ones and those in the store: a changed recipe needs no new run."""

from collections.abc import Sequence
from dataclasses import replace

from builder.gate.acceptance import accept, finding
from builder.gate.outcome import Outcome
from builder.matrix.config import Recipe
from builder.proof import Proof, Verdict
from builder.proofs.cells.op_gate import outcome_evidence, summary


def apply_accepts(proofs: Sequence[Proof], recipe: Recipe) -> list[Proof]:
    """Return the proofs with each finding that the recipe accepts marked, and no other."""
    return [_with_accepts(proof, recipe) for proof in proofs]


def _with_accepts(proof: Proof, recipe: Recipe) -> Proof:
    outcomes = accept(_outcomes(proof), recipe.accepts, str(proof.cell or ""))
    if proof.verdict is not Verdict.ACCEPTED and not any(one.accepted for one in outcomes):
        return proof
    evidence = {key: value for key, value in proof.evidence.items() if key not in ("accepted", "remark")}
    if "outcomes" in proof.evidence:
        verdict, reason = summary(outcomes)
        return replace(proof, verdict=verdict, reason=reason, evidence=evidence | outcome_evidence(outcomes))
    [one] = outcomes
    more = {"accepted": one.accepted} if one.accepted else {}
    return replace(proof, verdict=Verdict(one.verdict), evidence=evidence | more)


def _outcomes(proof: Proof) -> list[Outcome]:
    """The outcomes of a check of the gate; for any other check a single one. None of them is accepted."""
    check = str(proof.check)
    if "outcomes" not in proof.evidence:
        return [finding(Outcome(check, "", "", str(proof.verdict), proof.reason))]
    return [finding(Outcome(check=check, **one)) for one in proof.evidence["outcomes"]]
