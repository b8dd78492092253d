"""On which GPU model the ops of a wheel were checked, and with which verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from builder.proof import Check, Proof, Verdict

#: The name of a model; other words in evidence, which others may have written, are not shown.
_MODEL = re.compile(r"sm_[1-9][0-9]{1,2}")


def model_of(proof: Proof) -> str:
    """The GPU on which a check ran, such as `sm_90`: the first of its machine; empty for a check that needs no GPU."""
    where = proof.evidence.get("where") if proof.check.on_gpu else None
    gpus = where.get("gpus") if isinstance(where, dict) else None
    first = gpus[0] if isinstance(gpus, list) and gpus else None
    model = str(first.get("sm")) if isinstance(first, dict) else ""
    return model if _MODEL.fullmatch(model) else ""


def _by_cell(proofs: Sequence[Proof]) -> dict[str, Proof]:
    """The check that compares the values of every op, by the name of the cell, where it met a GPU."""
    return {str(p.cell): p for p in proofs if p.cell and p.check is Check.GPU_VALUES and model_of(p)}


def models_json(proofs: Sequence[Proof]) -> dict[str, Any]:
    """`{"gpu_models": …}` with the model and the verdict on it in each cell, for reports; empty without a model."""
    cells = {
        cell: {model_of(proof): {"verdict": str(proof.verdict), "reason": proof.reason}}
        for cell, proof in _by_cell(proofs).items()
    }
    return {"gpu_models": cells} if cells else {}


def proven_on(proofs: Sequence[Proof]) -> dict[str, tuple[str, ...]]:
    """The GPU models on which the values of every op were checked, by the name of the cell; cells with one at least."""
    good = {Verdict.PASSED, Verdict.ACCEPTED}
    return {cell: (model_of(proof),) for cell, proof in _by_cell(proofs).items() if proof.verdict in good}
