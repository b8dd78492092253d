"""One cell visited: its own environment, the wheel installed, imported in a fresh process, every op executed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError
from builder.gate.outcome import Answer
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proof import Check, Proof, Verdict
from builder.proofs.cell_environment import CellEnvironments
from builder.proofs.claim import now
from builder.proofs.gating import gate_not_run, gate_proofs
from builder.proofs.providers import SymbolTable
from builder.store import Store, job_name
from builder.wheels.environment import DiskFullError, KilledError, UnsatisfiableError

#: The gate takes every core; two at a time would only make each other's time limits run out.
_gate_turn = threading.Lock()

#: What says that a wheel does not go into its cell, not that something else is missing here.
_REFUSALS: tuple[type[FarmError], ...] = (UnsatisfiableError, BuildError)


@dataclass(frozen=True)
class Seen:
    """What one cell's environment showed.

    Attributes:
        symbols: what that torch's libraries export; None where the environment could not be had.
        proofs: of the import and of every check of the op gate.
        answer: what the gate said in full; None where it did not run.

    """

    symbols: SymbolTable | None
    proofs: tuple[Proof, ...]
    answer: Answer | None = None


@dataclass(frozen=True)
class Visitor:
    """Has a clean environment of a cell made, looks at a wheel in it, and has the environment taken away again."""

    store: Store
    cells: CellEnvironments
    log: Path
    stage: Callable[[str], None] = field(default=lambda _: None)

    def visit(self, cell: Cell, wheel: Path, sha256: str, recipe: Recipe) -> Seen:
        """Install the wheel beside the cell's own torch and prove it there.

        Raises DiskFullError and KilledError: they say nothing about the wheel.
        """
        self.stage(f"prove in {cell}")
        job = f"prove-{job_name(sha256)}-{cell}"
        with self.store.work(job) as folder, ExitStack() as stack:
            try:
                # The cell first, the wheel after: what fails then is the wheel's own fault.
                environment = stack.enter_context(self.cells.open(cell, folder, job=self.store.mark(job), log=self.log))
                symbols = environment.symbols()
                if fault := _refusal(lambda: environment.install(wheel)):
                    return Seen(symbols, _refused(fault, {}, sha256, cell))
                outcome = environment.try_import(recipe.imports)
            except MissingToolError as error:
                return unseen(str(error), sha256, cell)
            if outcome.verdict is Verdict.FAILED:
                return Seen(symbols, _refused(outcome.reason, outcome.evidence, sha256, cell))
            imported = Proof(sha256, cell, Check.IMPORT, outcome.verdict, outcome.reason, outcome.evidence, now())
            # After the import: that one is to hold without them. Those not to be had, the gate calls not run.
            _accompany(recipe.companions, partial(environment.install, wheel))
            with _gate_turn:
                self.stage(f"execute every op in {cell}")
                answer = environment.run_gate(recipe)
            if isinstance(answer, str):
                return Seen(symbols, (imported, *gate_not_run(answer, sha256, cell)))
            return Seen(symbols, (imported, *gate_proofs(answer, sha256, cell)), answer)


def _accompany(companions: Sequence[str], install: Callable[[Sequence[str]], None]) -> None:
    """Install the companions, all of them or as many as go together: one that is not to be had costs no other."""
    absences = (MissingToolError, BuildError)
    if not companions or not _refusal(lambda: install(companions), absences):
        return
    there: list[str] = []
    for companion in companions if len(companions) > 1 else ():
        more = [*there, companion]
        if not _refusal(partial(install, more), absences):
            there = more


def _refusal(install: Callable[[], None], told: tuple[type[FarmError], ...] = _REFUSALS) -> str:
    """Why it does not install where its cell stands ready; what is not among `told` is raised."""
    try:
        install()
    except (DiskFullError, KilledError):
        raise
    except told as error:
        return f"it does not install: {error.sentence}"
    return ""


def _refused(reason: str, evidence: dict[str, object], sha256: str, cell: Cell) -> tuple[Proof, ...]:
    """The import failed, and with it went every check that needs it: settled, since the wheel stays as it is."""
    failed = Proof(sha256, cell, Check.IMPORT, Verdict.FAILED, reason, evidence, now())
    return failed, *gate_not_run("it cannot be imported in this cell", sha256, cell, settled=True)


def unseen(reason: str, sha256: str, cell: Cell) -> Seen:
    """The cell is not to be had here."""
    neither = [
        Proof(sha256, cell, check, Verdict.NOT_RUN, reason, {}, now()) for check in (Check.LINKAGE, Check.IMPORT)
    ]
    return Seen(None, (*neither, *gate_not_run(reason, sha256, cell)))
