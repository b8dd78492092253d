"""The checks of one wheel in one cell on a worker."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import CheckTask, WorkerAnswer
from builder.hashing import digest_of
from builder.matrix.config import Recipe
from builder.proof import Proof
from builder.proofs.cells.cell_run import not_run_in_cell
from builder.proofs.cells.op_gate import CELL_CHECKS
from builder.proofs.cells.prover import cell_basis, timed_out

#: How often checks are tried on workers that lack the wheel.
ATTEMPTS = 3


def basis_text(recipe: Recipe) -> str:
    """Digest of what the verdicts of a cell depend on besides the wheel."""
    return digest_of({str(check): digest for check, digest in cell_basis(recipe).items()})


def append_log(answer: WorkerAnswer, log: Path) -> None:
    """Append what a worker sent of its log to the log of this machine; without it if that is not possible."""
    with suppress(OSError), log.open("ab") as stream:
        stream.write(zlib.decompress(answer.log) if answer.log else b"")


@dataclass(frozen=True)
class CellChecks:
    """The checks of one wheel in one cell."""

    #: What a worker does.
    task: CheckTask
    #: The wheel in the client's store.
    path: Path
    #: The files of the recipe.
    parts: Mapping[str, bytes]
    #: Proofs of the wheel that the store has.
    earlier: Sequence[Proof]
    #: Gets the logs of the workers.
    log: Path

    def is_open(self, *, gpu: bool) -> bool:
        """Whether another run could decide a check; `gpu`: it would be on a worker with a GPU."""
        cell, basis = self.task.cell, cell_basis(self.task.recipe)
        counts = [p for p in self.earlier if p.cell == cell and p.basis == basis.get(p.check) and not timed_out(p)]
        decided = {p.check for p in counts if p.has_run or (p.evidence.get("settled") and not (gpu and p.check.on_gpu))}
        return self.task.again or not decided.issuperset(CELL_CHECKS)

    def run(self, cluster: Cluster) -> tuple[Proof, ...]:
        """One proof for each check; "not run" with the reason where no worker can.

        A worker that lacks the wheel gets it from here.
        """
        only = ""
        for attempt in range(ATTEMPTS):
            # A later attempt is another task: Dask does not run a finished key again.
            basis = f"{self.task.basis}-{attempt}" if attempt else self.task.basis
            task = replace(self.task, basis=basis)
            answer = cluster.compute(task, self.parts, only=only)
            append_log(answer, self.log)
            if not answer.no_wheel:
                break
            only = answer.worker
            with suppress(OSError):
                cluster.send(only, task.wheel, self.path)
        if answer.error is None and not answer.no_wheel:
            return answer.proofs
        reason = str(answer.error or "no worker could get the wheel")
        return not_run_in_cell(reason, self.task.wheel.sha256, self.task.cell).proofs
