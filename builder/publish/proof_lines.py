"""What the proofs of wheels say: why checks failed, how many passed, where ops ran on a GPU, which have a gradient."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from builder.gate import outcome as gate
from builder.gate.amounts import grouped
from builder.gate.outcome import FAILED, NOT_RUN, REMARK, Outcome, count_text
from builder.gate.report import Causes, PlacedOutcome, causes_of, line
from builder.proof import Check, Proof, Verdict
from builder.untrusted import text

#: Checks that many ops do not promise to pass.
_OPTIONAL = (Check.OPCHECK, Check.FAKE, Check.DEVICES, Check.EXPORT, Check.COMPILE)
#: What the evidence of an outcome may have besides op, case and verdict.
_TEXTS = {"reason", "remark", "accepted"}
#: The name of a model; other words in evidence, which others may have written, are not shown.
_MODEL = re.compile(r"sm_[1-9][0-9]{1,2}")


def causes(proofs: Iterable[Proof], *, name_cells: bool = False) -> Causes:
    """Why checks of one wheel failed, did not run, are accepted or are remarked on."""
    return causes_of(findings(proofs), name_cells=name_cells)


def findings(proofs: Iterable[Proof], wheel: str = "") -> Iterator[PlacedOutcome]:
    """What proofs found: the outcomes of the op gate, and for other checks the verdict."""
    for proof in proofs:
        cell = str(proof.cell) if proof.cell else ""
        for one in _outcomes(proof):
            yield PlacedOutcome(one, cell, wheel)
        for remark in remarks(proof):
            yield PlacedOutcome(Outcome(str(proof.check), "", "", NOT_RUN, remark, remark=True), cell, wheel)


def _outcomes(proof: Proof) -> list[Outcome]:
    check, verdict = str(proof.check), str(proof.verdict)
    found = [
        replace(
            Outcome(check, one["op"], one["case"], one["verdict"]), **{key: one[key] for key in _TEXTS & one.keys()}
        )
        for one in recorded([proof])
    ]
    if not any(one.verdict == verdict for one in found):
        found = [Outcome(check, "", "", verdict, proof.reason, remark=proof.remark, accepted=proof.accepted)]
    return found


def recorded(proofs: Iterable[Proof], check: Check | None = None) -> list[dict[str, Any]]:
    """The outcomes of ops in the evidence of proofs, as plain data; of one check, or of all."""
    about = [proof for proof in proofs if check in (None, proof.check)]
    return [one for proof in about for one in proof.evidence.get("outcomes", ())]


def failed_lines(proofs: Sequence[Proof]) -> list[str]:
    """A sentence for each cause of failed checks; one crash may fail many checks."""
    return causes(proofs).sentences(FAILED)


def remarks(proof: Proof) -> list[str]:
    """What a proof says besides its verdict."""
    return list(proof.evidence.get("remarks", ()))


def counts(proofs: Sequence[Proof]) -> str:
    """How many checks have which verdict, such as `20 passed, 1 failed, 5 not run, 1 accepted, 1 remark`."""
    words = [REMARK if proof.remark else str(proof.verdict) for proof in proofs]
    return count_text([*words, *(REMARK for proof in proofs for _ in remarks(proof))])


def gpu_lines(proofs: Sequence[Proof], width: int) -> list[str]:
    """The GPU models on which the values of every op were checked, and in which cells."""
    models = proven_on(proofs)
    cells = {str(proof.cell) for proof in proofs if proof.cell}
    lines = []
    for proven in dict.fromkeys(models.values()):
        where = [cell for cell, found in models.items() if found == proven]
        place = "" if len(where) == len(cells) else f" in {where[0] if len(where) == 1 else f'{len(where)} cells'}"
        lines += line(Verdict.PASSED, "GPU", ", ".join(proven) + place, width)
    return lines


def hints_of(proofs: Iterable[Proof]) -> list[str]:
    """What to do about failed checks."""
    failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
    hints = [hint for proof in failed for hint in proof.evidence.get("hints", ())]
    hints += [
        f'if the op does not support `{proof.check}`, write `not_claimed={{"{proof.check}": REASON}}` in its Case'
        for proof in failed
        if proof.check in _OPTIONAL
    ]
    return list(dict.fromkeys(hints))


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
    right = {one["op"] for one in recorded(proofs, Check.GPU_VALUES) if one["verdict"] == Verdict.PASSED}
    for one in recorded(proofs, Check.GRADIENTS):
        if one["op"]:
            known = _gradient(one)
            if known in {Gradient.CHECKED_ON_CPU, Gradient.RECORDED} and one["op"] in right:
                known = Gradient.CHECKED
            found.setdefault(text(one["op"]), []).append(known)
    return {op: min(states, key=list(Gradient).index) for op, states in found.items()}


def _gradient(outcome: Mapping[str, Any]) -> Gradient:
    if known := _FROM_EVIDENCE.get(outcome.get("evidence", {}).get("gradient")):
        return known
    if outcome["verdict"] != Verdict.NOT_RUN:
        return Gradient.CHECKED_ON_CPU if outcome["verdict"] == Verdict.PASSED else Gradient.WRONG
    return Gradient.NOT_CLAIMED if text(outcome.get("reason", "")).startswith("not claimed") else Gradient.NOT_RUN


def gradient_text(gradients: Mapping[str, str]) -> str:
    """The ops by their gradient, such as `yes, checked (ns::add); not run (ns::sub, ns::mul)`; "" without an op."""
    ops = grouped((gradient, op) for op, gradient in gradients.items())
    return "; ".join(f"{gradient} ({', '.join(names)})" for gradient, names in sorted(ops.items(), key=_place))


def uncompiled_text(proofs: Sequence[Proof]) -> str:
    """The ops that the cases do not claim to work under torch.compile, in a sentence; "" if they claim it for all."""
    found = [one for one in recorded(proofs, Check.COMPILE) if one["verdict"] == Verdict.NOT_RUN and one["op"]]
    ops = dict.fromkeys(text(one["op"]) for one in found if text(one.get("reason", "")).startswith("not claimed"))
    return f"torch.compile: not claimed in cases.py ({', '.join(ops)})" if ops else ""


def _place(item: tuple[str, Sequence[str]]) -> int:
    return next((at for at, each in enumerate(Gradient) if each == item[0]), len(Gradient))
