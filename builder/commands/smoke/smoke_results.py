"""What one `buildfarm smoke` has found so far; each result is saved at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from builder.commands.smoke.smoke_targets import SmokeTarget
from builder.gate.outcome import Answer
from builder.log import print_warning
from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.acceptance import judge, unused_accepts
from builder.proofs.cells.prover import cell_basis
from builder.publish.index.new_wheel import merged, proofs_beside, proofs_json, proofs_path
from builder.publish.unchanged import write_if_changed
from builder.result import SmokeResult
from builder.store import Store
from builder.timeline.recorder import Recorder

if TYPE_CHECKING:
    from builder.commands.index.verification import Verification

#: Checks of a file that ask about other cells than those of `smoke`.
_NOT_FOR_CELLS = (Check.WINDOW, Check.GPUS, Check.LINKAGE)


class Results:
    """The results of one run; their proofs go into the store, and into the file beside a wheel that `build` wrote."""

    def __init__(self, store: Store, recorder: Recorder, targets: Sequence[SmokeTarget]) -> None:
        """Raises UsageError for an unusable file of proofs beside a wheel."""
        self._store = store
        self._recorder = recorder
        self._beside = {target.wheel: proofs_beside(target.wheel, target.sha256) for target in targets}
        self._files: dict[str, tuple[Proof, ...]] = {}
        #: the proofs of each wheel from this run and from earlier ones, by its file name
        self.known: dict[str, list[Proof]] = {}
        self.all: list[SmokeResult] = []

    def add(self, target: SmokeTarget, cell: Cell, found: Sequence[Proof], answer: Answer | None) -> SmokeResult:
        """Judge and save the proofs of a wheel in a cell."""
        basis = cell_basis(target.recipe)
        proofs = tuple(judge([replace(proof, basis=basis[proof.check]) for proof in found], target.recipe))
        self._store.save_proofs(proofs)
        result = SmokeResult(target.wheel.name, cell, proofs, answer, self._about_file(target))
        self._recorder.name_cells(result.subject, proofs)
        self.all.append(result)
        beside = self._beside[target.wheel]
        known = self.known[result.subject] = merged(
            beside or self._store.proofs(target.sha256), result.file_proofs, proofs
        )
        if beside:
            self._beside[target.wheel] = known
            write_if_changed(proofs_path(target.wheel), proofs_json(known))
        return result

    @cached_property
    def _verification(self) -> Verification:
        from builder.commands.index.verification import Verification  # noqa: PLC0415 - auditwheel loads slowly

        return Verification(self._store)

    def _about_file(self, target: SmokeTarget) -> tuple[Proof, ...]:
        """The checks of the wheel file, as `publish` makes them: those that `build` made do not run again."""
        if target.sha256 not in self._files:
            known = self._beside[target.wheel] or self._store.proofs(target.sha256)
            known = [proof for proof in known if proof.cell is None]
            found = self._verification.added(target.wheel, known, recipe=target.recipe)
            self._files[target.sha256] = tuple(
                _of_cells(proof)
                for proof in found
                if proof.cell is None and (proof.verdict is Verdict.FAILED or proof.check not in _NOT_FOR_CELLS)
            )
        return self._files[target.sha256]

    def warn_of_unused_accepts(self, target: SmokeTarget, result: SmokeResult) -> None:
        """Print the acceptances of the recipe that no proof of a cell needed."""
        for sentence in unused_accepts(target.recipe, result.proofs):
            print_warning(f"{target.recipe.name} in {result.cell}: {sentence}")


def _of_cells(proof: Proof) -> Proof:
    """The check `tags`, if what fails is the promise of the tag about other systems than those of the cells."""
    promise = proof.evidence.get("file") == proof.evidence.get("wheel")
    if proof.check is not Check.TAGS or proof.verdict is not Verdict.FAILED or not promise:
        return proof
    reason = f"`smoke` tests no other system than that of the cell: {proof.reason}"
    return replace(proof, verdict=Verdict.NOT_RUN, reason=reason, evidence={**proof.evidence, "remark": True})


def outcome_of(result: SmokeResult) -> str:
    """The end of a cell in the lines of the progress."""
    failed = sum(proof.verdict is Verdict.FAILED for proof in result.all_proofs)
    return f"{failed} failed" if failed else "tested"
