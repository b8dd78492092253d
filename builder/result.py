"""The results of the verbs `build`, `smoke` and `rebuild`, for the reports."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from builder.errors import BuildfarmError, Exit
from builder.gate.draft.result import Drafts
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, PASSED, Answer
from builder.matrix.axes import Cell
from builder.matrix.plan import Build
from builder.proof import Proof, Verdict
from builder.store import StoredBuild


@dataclass(frozen=True)
class BuildResult:
    """The result of one build of the plan."""

    build: Build
    #: stored, error: the finished wheel in the store, or None; why the build or its proofs failed, or None.
    stored: StoredBuild | None
    error: BuildfarmError | None
    #: Whether the store already had the wheel.
    reused: bool
    #: Wall time of this run for the build and its proofs.
    seconds: float
    #: Verdicts about the file and about each cell that the build serves.
    proofs: tuple[Proof, ...] = ()
    #: The file with the output of the build and of its proofs, or None.
    log: Path | None = None

    @property
    def refused(self) -> bool:
        """Whether a check of the wheel failed; such a wheel is not published."""
        return any(proof.verdict is Verdict.FAILED for proof in self.proofs)

    @property
    def mistake_in_cases(self) -> bool:
        """Whether a check failed, and each failed because of a mistake in cases.py: no check found the wheel at fault.

        The name of an op that exists in one of the cells is no mistake.
        """
        failed = [proof for proof in self.proofs if proof.verdict is Verdict.FAILED]
        found = {one["op"] for one in _outcomes(self.proofs) if one["verdict"] == PASSED}
        found |= {op.partition(".")[0] for op in found if "::" in op}
        return bool(failed) and all(_is_mistake(proof, found) for proof in failed)

    @property
    def exit(self) -> Exit:
        """The exit code that this build asks for; the run exits with the highest."""
        if self.error is not None:
            return self.error.exit_code
        return Exit.FAILED if self.refused else Exit.OK


def _is_mistake(proof: Proof, found: Set[str]) -> bool:
    """Whether each failure of this check is a mistake in cases.py; `found` are the ops of any cell."""
    failed = [one for one in _outcomes([proof]) if one["verdict"] == FAILED]
    mistakes = [one for one in failed if MISTAKE_IN_CASES.items() <= one.get("evidence", {}).items()]
    lost = [one for one in mistakes if one["evidence"].get("unknown") and one["op"] in found]
    return bool(failed) and len(mistakes) == len(failed) and not lost


def _outcomes(proofs: Sequence[Proof]) -> list[dict[str, Any]]:
    return [one for proof in proofs for one in proof.evidence.get("outcomes", ())]


@dataclass(frozen=True)
class SmokeResult:
    """The result of one wheel in one cell."""

    #: The wheel's file name, or NAME VERSION of an installed distribution.
    subject: str
    cell: Cell
    #: Verdicts of the import check and of every check of the op gate.
    proofs: tuple[Proof, ...]
    #: Every outcome of the op gate; None where it did not run.
    answer: Answer | None
    #: Verdicts of the checks of the wheel file, the same in each cell.
    file_proofs: tuple[Proof, ...] = ()

    @property
    def all_proofs(self) -> tuple[Proof, ...]:
        """The verdicts on the file, and those in the cell."""
        return (*self.file_proofs, *self.proofs)


@dataclass(frozen=True)
class CasesResult:
    """The draft of the cases of one extension."""

    #: extension, wheel, cell: its name, the file name of the wheel whose ops were called, and where they were called.
    extension: str
    wheel: str
    cell: Cell
    drafts: Drafts
    #: file, text: what was written, or None if the recipe has a cases.py already; what this cases.py lacks, or "".
    file: Path | None
    text: str


@dataclass(frozen=True)
class RebuildResult:
    """The result of building a wheel again."""

    wheel: str
    #: sha256, rebuilt_sha256: of the first and of the rebuilt wheel, hex.
    sha256: str
    rebuilt_sha256: str
    #: How the rebuilt wheel differs; empty when both are equal bit for bit.
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both wheels are equal bit for bit."""
        return self.sha256 == self.rebuilt_sha256 and not self.differences


class PublishOutcome(StrEnum):
    """What `publish` did with a wheel."""

    PUBLISHED = "published"
    UNCHANGED = "already published"
    REFUSED = "refused"


@dataclass(frozen=True)
class PublishResult:
    """What `publish` did with one wheel."""

    wheel: str
    outcome: PublishOutcome
    #: The level of each cell, by the cell's name.
    cells: dict[str, str]
    #: The paths of the index that list the wheel.
    paths: tuple[str, ...] = ()
    #: reasons, notes: why it was refused, and what else to say about it; a sentence each.
    reasons: tuple[str, ...] = ()
    #: Why it was yanked before, maybe empty; None if it is not yanked.
    yanked: str | None = None
    notes: tuple[str, ...] = ()
    #: What else `--json` says about it.
    about: dict[str, Any] = field(default_factory=dict)
    #: What its proofs lack for a required level; `reasons` then are the sentences of these.
    lacking: Sequence[Proof] = ()
    #: Why the check `window`, of the torch releases that METADATA allows, did not run; empty if it did.
    unverified: str = ""
