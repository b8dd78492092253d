"""The results of the verbs `build`, `smoke` and `rebuild`, for the reports."""

from __future__ import annotations

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
from builder.records.toolchain import Toolchain
from builder.store import StoredBuild
from builder.wheelfile.diff import Difference


@dataclass(frozen=True)
class BuildResult:
    """The result of one build of the plan.

    Attributes:
        build: the build.
        stored: the finished wheel in the store, or None.
        error: why the build or its proofs failed, or None.
        reused: whether the store already had the wheel.
        seconds: wall time of this run for the build and its proofs.
        toolchain: what compiled the wheel; None if the build failed before that was known.
        proofs: verdicts about the file and about each cell that the build serves.
        log: the file with the output of the build and of its proofs, or None.

    """

    build: Build
    stored: StoredBuild | None
    error: BuildfarmError | None
    reused: bool
    seconds: float
    toolchain: Toolchain | None = None
    proofs: tuple[Proof, ...] = ()
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
    """The result of one wheel in one cell.

    Attributes:
        subject: the wheel's file name, or NAME VERSION of an installed distribution.
        cell: the cell.
        proofs: verdicts of the import check and of every check of the op gate.
        answer: every outcome of the op gate; None where it did not run.
        file_proofs: verdicts of the checks of the wheel file, the same in each cell.

    """

    subject: str
    cell: Cell
    proofs: tuple[Proof, ...]
    answer: Answer | None
    file_proofs: tuple[Proof, ...] = ()

    @property
    def all_proofs(self) -> tuple[Proof, ...]:
        """The verdicts on the file, and those in the cell."""
        return self.file_proofs + self.proofs


@dataclass(frozen=True)
class CasesResult:
    """The draft of the cases of one extension.

    Attributes:
        extension: its name.
        wheel: file name of the wheel whose ops were called.
        cell: the cell in which they were called.
        drafts: a draft for each op without a case.
        file: the file that was written; None if the recipe has a cases.py already.
        text: what the existing cases.py lacks, or "".
        cases: path of the recipe's cases.py, which may not exist.

    """

    extension: str
    wheel: str
    cell: Cell
    drafts: Drafts
    file: Path | None
    text: str
    cases: Path


@dataclass(frozen=True)
class RebuildResult:
    """The result of building a wheel again.

    Attributes:
        wheel: the wheel's file name.
        sha256: of the first wheel, hex.
        rebuilt_sha256: of the rebuilt wheel, hex.
        differences: how the rebuilt wheel differs; empty when both are equal bit for bit.

    """

    wheel: str
    sha256: str
    rebuilt_sha256: str
    differences: tuple[Difference, ...]

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
    """What `publish` did with one wheel.

    Attributes:
        wheel: its file name.
        outcome: published, already published or refused.
        cells: the level of each cell, by the cell's name.
        paths: the paths of the index that list the wheel.
        reasons: why it was refused, a sentence each.
        notes: what else to say about it, a sentence each.
        below_level: whether its proofs do not reach a required level.

    """

    wheel: str
    outcome: PublishOutcome
    cells: dict[str, str]
    paths: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    below_level: bool = False


@dataclass(frozen=True)
class AdoptResult:
    """What `adopt` did with one wheel.

    Attributes:
        published: what was published or refused.
        origin: where the wheel came from: a URL, or `a file`.
        cells: the cells that were tested, now or before.
        not_run: why other claimed cells could not be tested, by the cell's name.
        others: why the wheel claims no other cell, a sentence each.
        left_out: the number of claimed cells that the options leave out.
        proofs: of the file and of each cell in `cells`.

    """

    published: PublishResult
    origin: str
    cells: tuple[Cell, ...] = ()
    not_run: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    left_out: int = 0
    proofs: tuple[Proof, ...] = ()
