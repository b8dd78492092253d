"""On which GPU models a check ran, and its verdict on each; a proof keeps them in its evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict

#: The key in the evidence of a proof.
KEY = "gpu_models"
#: The name of a model; other words in evidence, which others may have written, are not shown.
_MODEL = re.compile(r"sm_[1-9][0-9]{1,2}")


@dataclass(frozen=True)
class OnModel:
    """The verdict of one check on one GPU model."""

    #: Passed, failed, accepted or not run.
    verdict: Verdict
    #: As in `Proof`.
    reason: str = ""
    #: Whether a check that was not run would not run on another GPU of this model either.
    settled: bool = False

    @property
    def ran(self) -> bool:
        """Whether there is a verdict other than "not run"."""
        return self.verdict is not Verdict.NOT_RUN

    @property
    def decided(self) -> bool:
        """Whether another run on this model would find the same."""
        return self.ran or self.settled

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the evidence of a proof."""
        return {"verdict": str(self.verdict), "reason": self.reason, "settled": self.settled}


def models_of(proof: Proof) -> dict[str, OnModel]:
    """The verdict of a check on each GPU model, such as `sm_90`; empty for a check that needs no GPU.

    A proof of one machine names the machine's GPUs. The checks use the first of them.
    """
    if not proof.check.on_gpu:
        return {}
    table = proof.evidence.get(KEY)
    if isinstance(table, dict):
        named = {model: entry for model, entry in table.items() if _MODEL.fullmatch(model)}
        return {model: each for model, entry in named.items() if (each := _read(entry, proof))}
    where = proof.evidence.get("where")
    gpus = where.get("gpus") if isinstance(where, dict) else None
    first = gpus[0] if isinstance(gpus, list) and gpus else None
    if not isinstance(first, dict) or not _MODEL.fullmatch(str(first.get("sm"))):
        return {}
    return {str(first["sm"]): OnModel(proof.verdict, proof.reason, settled=bool(proof.evidence.get("settled")))}


def _read(entry: object, proof: Proof) -> OnModel | None:
    """One entry of the evidence; a failure that the recipe accepts is accepted on each model."""
    if not isinstance(entry, dict) or entry.get("verdict") not in set(Verdict):
        return None
    verdict = Verdict(cast("str", entry["verdict"]))
    if verdict is Verdict.FAILED and proof.verdict is Verdict.ACCEPTED:
        verdict = Verdict.ACCEPTED
    return OnModel(verdict, str(entry.get("reason", "")), settled=bool(entry.get("settled")))


def models_by_cell(proofs: Sequence[Proof]) -> dict[Cell, dict[str, OnModel]]:
    """The verdicts on each GPU model of the check that compares the values of every op, by cell."""
    found = {p.cell: models_of(p) for p in proofs if p.cell and p.check is Check.GPU_VALUES}
    return {cell: models for cell, models in found.items() if models}


def models_json(proofs: Sequence[Proof]) -> dict[str, Any]:
    """`{"gpu_models": …}` with the verdict on each model in each cell, for reports; empty without a model."""
    cells = {
        str(cell): {model: {"verdict": str(on.verdict), "reason": on.reason} for model, on in sorted(models.items())}
        for cell, models in models_by_cell(proofs).items()
    }
    return {KEY: cells} if cells else {}


def proven_on(proofs: Sequence[Proof]) -> dict[str, tuple[str, ...]]:
    """The GPU models on which the values of every op were checked, by the name of the cell; cells with one at least."""
    good = {Verdict.PASSED, Verdict.ACCEPTED}
    by_cell: Mapping[Cell, tuple[str, ...]] = {
        cell: tuple(sorted((model for model, on in models.items() if on.verdict in good), key=_number))
        for cell, models in models_by_cell(proofs).items()
    }
    return {str(cell): models for cell, models in by_cell.items() if models}


def _number(model: str) -> int:
    """The order of models: sm_90 before sm_120."""
    return int(model.removeprefix("sm_"))
