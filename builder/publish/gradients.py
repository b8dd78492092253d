"""Whether each op of a wheel has a gradient, by the outcomes of the check `gradients`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from builder.gate import outcome as gate
from builder.proof import Check, Proof, Verdict
from builder.untrusted import text


class Gradient(StrEnum):
    """What is known of the gradient of one op. Where its cases or cells differ, the first of these holds."""

    LOST = "none: the gradients of the inputs are lost"
    WRONG = "wrong"
    CHECKED = "yes, checked"
    REFUSED = "none: backward raises an error"
    NOT_CLAIMED = "not claimed in cases.py"
    NOT_RUN = "not run"


_FROM_EVIDENCE = {gate.LOST: Gradient.LOST, gate.CHECKED: Gradient.CHECKED, gate.REFUSED: Gradient.REFUSED}


def gradients_of(proofs: Sequence[Proof]) -> dict[str, Gradient]:
    """The gradient of each op with floating-point tensors, by the name of the op.

    Raises KeyError, TypeError, ValueError or AttributeError for evidence that no check has written.
    """
    found: dict[str, list[Gradient]] = {}
    for proof in proofs:
        for one in proof.evidence.get("outcomes", ()) if proof.check is Check.GRADIENTS else ():
            if one["op"]:
                found.setdefault(text(one["op"]), []).append(_gradient(one))
    return {op: min(states, key=list(Gradient).index) for op, states in found.items()}


def _gradient(outcome: Mapping[str, Any]) -> Gradient:
    if known := _FROM_EVIDENCE.get(outcome.get("evidence", {}).get("gradient")):
        return known
    if outcome["verdict"] != Verdict.NOT_RUN:
        return Gradient.CHECKED if outcome["verdict"] == Verdict.PASSED else Gradient.WRONG
    return Gradient.NOT_CLAIMED if text(outcome.get("reason", "")).startswith("not claimed") else Gradient.NOT_RUN


def gradient_text(gradients: Mapping[str, str]) -> str:
    """The ops by their gradient, such as `yes, checked (ns::add); not run (ns::sub, ns::mul)`; "" without an op."""
    ops: dict[str, list[str]] = {}
    for op, gradient in gradients.items():
        ops.setdefault(gradient, []).append(op)
    return "; ".join(f"{gradient} ({', '.join(names)})" for gradient, names in sorted(ops.items(), key=_place))


def _place(item: tuple[str, Sequence[str]]) -> int:
    return next((at for at, each in enumerate(Gradient) if each == item[0]), len(Gradient))
