"""What the proofs say of ops: on which GPU model they were checked, and whether each has a gradient."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from builder.gate import outcome as gate
from builder.proof import Check, Proof, Verdict
from builder.untrusted import text

#: The name of a model; other words in evidence, which others may have written, are not shown.
_MODEL = re.compile(r"sm_[1-9][0-9]{1,2}")


def model_of(proof: Proof) -> str:
    """The GPU on which a check ran, such as `sm_90`: the first of its machine; empty for a check that needs no GPU."""
    where = proof.evidence.get("where") if proof.check.on_gpu else None
    gpus = where.get("gpus") if isinstance(where, dict) else None
    first = gpus[0] if isinstance(gpus, list) and gpus else None
    model = str(first.get("sm")) if isinstance(first, dict) else ""
    return model if _MODEL.fullmatch(model) else ""


def proven_on(proofs: Sequence[Proof]) -> dict[str, tuple[str, ...]]:
    """The GPU models on which the values of every op were checked, by the name of the cell; cells with one at least."""
    checked = (one for one in proofs if one.cell and one.check is Check.GPU_VALUES)
    good = {Verdict.PASSED, Verdict.ACCEPTED}
    return {str(one.cell): (model,) for one in checked if one.verdict in good and (model := model_of(one))}


class Gradient(StrEnum):
    """What is known of the gradient of one op. Where its cases or cells differ, the first of these holds."""

    LOST = "none: the gradients of the inputs are lost"
    WRONG = "wrong"
    CHECKED = "yes, checked"
    CHECKED_ON_CPU = "yes, checked on the CPU"
    REFUSED = "none: backward raises an error"
    NOT_CLAIMED = "not claimed in cases.py"
    RECORDED = "on the CPU only, not run on CUDA"
    NOT_RUN = "not run"


_FROM_EVIDENCE = {
    gate.LOST: Gradient.LOST,
    gate.CHECKED: Gradient.CHECKED_ON_CPU,
    gate.REFUSED: Gradient.REFUSED,
    gate.RECORDED: Gradient.RECORDED,
}


def gradients_of(proofs: Sequence[Proof]) -> dict[str, Gradient]:
    """The gradient of each op with floating-point tensors, by the name of the op.

    Raises KeyError, TypeError, ValueError or AttributeError for evidence that no check has written.
    """
    found: dict[str, list[Gradient]] = {}
    # On CUDA, "gpu-values" compares the gradients too.
    right = {one["op"] for one in _outcomes(proofs, Check.GPU_VALUES) if one["verdict"] == Verdict.PASSED}
    for one in _outcomes(proofs, Check.GRADIENTS):
        if one["op"]:
            known = _gradient(one)
            if known in {Gradient.CHECKED_ON_CPU, Gradient.RECORDED} and one["op"] in right:
                known = Gradient.CHECKED
            found.setdefault(text(one["op"]), []).append(known)
    return {op: min(states, key=list(Gradient).index) for op, states in found.items()}


def _outcomes(proofs: Sequence[Proof], check: Check) -> list[Mapping[str, Any]]:
    return [one for proof in proofs if proof.check is check for one in proof.evidence.get("outcomes", ())]


def _gradient(outcome: Mapping[str, Any]) -> Gradient:
    if known := _FROM_EVIDENCE.get(outcome.get("evidence", {}).get("gradient")):
        return known
    if outcome["verdict"] != Verdict.NOT_RUN:
        return Gradient.CHECKED_ON_CPU if outcome["verdict"] == Verdict.PASSED else Gradient.WRONG
    return Gradient.NOT_CLAIMED if text(outcome.get("reason", "")).startswith("not claimed") else Gradient.NOT_RUN


def gradient_text(gradients: Mapping[str, str]) -> str:
    """The ops by their gradient, such as `yes, checked (ns::add); not run (ns::sub, ns::mul)`; "" without an op."""
    ops: dict[str, list[str]] = {}
    for op, gradient in gradients.items():
        ops.setdefault(gradient, []).append(op)
    return "; ".join(f"{gradient} ({', '.join(names)})" for gradient, names in sorted(ops.items(), key=_place))


def _place(item: tuple[str, Sequence[str]]) -> int:
    return next((at for at, each in enumerate(Gradient) if each == item[0]), len(Gradient))
