"""How one build of a plan ended, and what a wheel showed in a cell: what the farm hands to the report."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import Exit, FarmError
from builder.gate.outcome import Answer
from builder.matrix.axes import Cell
from builder.matrix.plan import Build
from builder.proof import Proof, Verdict
from builder.store import Stored
from builder.wheels.build import Toolchain


@dataclass(frozen=True)
class Result:
    """How one build of the plan ended.

    Attributes:
        build: which.
        stored: the finished wheel, or None.
        error: why there is none, or None.
        reused: the store had it already.
        seconds: wall time of this run's work on it.
        toolchain: what compiled it, once that was known.
        proofs: its checks, for the file and for each cell it serves.

    """

    build: Build
    stored: Stored | None
    error: FarmError | None
    reused: bool
    seconds: float
    toolchain: Toolchain | None = None
    proofs: tuple[Proof, ...] = ()

    @property
    def exit(self) -> Exit:
        """What this build contributes to the run's exit code."""
        if self.error is not None:
            return self.error.exit_code
        return Exit.FAILED if any(p.verdict is Verdict.FAILED for p in self.proofs) else Exit.OK


@dataclass(frozen=True)
class Smoked:
    """What one wheel showed in one cell.

    Attributes:
        subject: the wheel's file name, or NAME VERSION of what is installed.
        cell: where.
        proofs: of the import and of every check of the gate.
        answer: what the gate said in full; None where it did not run.

    """

    subject: str
    cell: Cell
    proofs: tuple[Proof, ...]
    answer: Answer | None
