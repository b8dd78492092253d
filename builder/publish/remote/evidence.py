"""The evidence that comes with an upload: its fields, and the proofs as the server reads and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.errors import Code, UsageError
from builder.proof import PROOFS_SUFFIX, Check, Proof, Verdict
from builder.proofs.claimed_cells import CellClaims, foreign_claim, provided_by_torch
from builder.proofs.static.claim import make_proof
from builder.publish.index.levels import levels
from builder.publish.index.new_wheel import merged, proofs_beside
from builder.publish.provenance import SUFFIX as STATEMENT_SUFFIX
from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.facts import facts_of, open_wheel

#: Where twine, `uv publish` and `buildfarm publish` upload to; a GET says what a token allows.
UPLOAD_PATH = "legacy"
#: The fields of a form with the files beside a wheel, and the suffixes of these files.
EVIDENCE = {"buildfarm_proofs": PROOFS_SUFFIX, "buildfarm_statement": STATEMENT_SUFFIX}
#: Bytes of one such field. Reading JSON needs about twenty times as much memory.
MAX_EVIDENCE = 12 * 2**20
#: The answers to an upload that was accepted.
PUBLISHED, UNCHANGED, UPDATED = "published", "already published", "proofs updated"


def vouched_proofs(wheel: Path, sha256: str) -> list[Proof]:
    """The proofs beside an uploaded wheel, with the server's own verdict on every check of the file.

    The verdicts in the cells are those of the uploader, whose token vouches for them. Of the checks of the file, only
    two verdicts of the uploader count: that a check failed, and that the recipe accepts the finding of a check that
    fails here too. No proofs beside the wheel: none.

    Raises UsageError for a wheel or proofs that cannot be read, for proofs of a different file, and for proofs in a
    cell that the wheel itself excludes.
    """
    sent = proofs_beside(wheel, sha256)
    if not sent:
        return []
    from builder.proofs.file_checks import static_proofs  # noqa: PLC0415 - auditwheel loads slowly

    with open_wheel(wheel) as archive:
        facts, fault = facts_of(archive, sha256, wheel.stat().st_size), wheel_fault(archive)
    cells = sorted({proof.cell for proof in sent if proof.cell})
    for cell in cells:
        if why := CellClaims(facts).why_not(cell):
            raise UsageError(f"there are proofs in {cell}, but {why.reason}", Code.PROOFS_NOT_USABLE)
    # Whether the wheel must contain GPU code is in the recipe, which the server does not have.
    claim = replace(foreign_claim(facts, cells), cuda_required=False)
    own = {
        proof.check: proof for proof in static_proofs(facts, claim, provided_by_torch(facts), {}) if proof.cell is None
    }
    if fault:
        own[Check.RECORD] = make_proof(facts, Check.RECORD, [fault])
    for proof in sent:
        if proof.cell is None and (proof.check in own or proof.verdict is Verdict.FAILED):
            own[proof.check] = _weighed(proof, own.get(proof.check))
    return [*own.values(), *(proof for proof in sent if proof.cell)]


def nothing_new(earlier: Sequence[Proof], sent: Sequence[Proof]) -> bool:
    """Whether an index that has the earlier proofs learns nothing from these."""
    both = merged(earlier, sent)
    in_cells = [proof for proof in both if proof.cell]
    return in_cells == [proof for proof in merged(earlier) if proof.cell] and levels(both) == levels(earlier)


def _weighed(sent: Proof, own: Proof | None) -> Proof:
    """One verdict of two: that of the uploader, if it is not better than that of this server."""
    if own is None:
        return sent
    if own.verdict is Verdict.FAILED and sent.verdict is not Verdict.ACCEPTED:
        return own
    # The uploader also knows the claimed architectures. The code in the libraries is a fact of the file.
    facts = {key: value for key, value in own.evidence.items() if key == "libraries"}
    return replace(sent, evidence={**sent.evidence, **facts})
