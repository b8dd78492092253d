"""Prove one wheel in one cell: create the environment, install the wheel, import it, run the op gate."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.diagnosis.known_errors import reports
from builder.errors import BuildError, BuildfarmError, MissingToolError, SymbolsUnreadableError
from builder.gate.amounts import join_names
from builder.gate.outcome import Answer
from builder.gate.torch_limits import NO_GPU
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.progress.display import WAITS
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.cell_environment import Ahead
from builder.proofs.cells.driver import make_stubs
from builder.proofs.cells.import_check import CAUSES, ImportOutcome, import_hints
from builder.proofs.cells.op_gate import CELL_CHECKS, CellProofs
from builder.proofs.cells.turns import TURNS
from builder.proofs.static.symbol_table import SymbolTable
from builder.store import Store, work_name
from builder.wheelfile.compatibility import is_driver_library
from builder.wheels.toolchain.uv import MachineFaultError, UnsatisfiableError

if TYPE_CHECKING:
    from builder.proofs.cells.cell_environment import CellEnvironment, CellEnvironments

#: Errors that mean the wheel does not install in its cell. Any other error means that this machine lacks something.
_INSTALL_ERRORS: tuple[type[BuildfarmError], ...] = (UnsatisfiableError, BuildError)


@dataclass(frozen=True)
class CellRun:
    """Results of one wheel in one cell."""

    #: What the libraries of the cell's torch export; None if they were not read.
    symbols: SymbolTable | None
    #: Of the import and of every check of the op gate.
    proofs: tuple[Proof, ...]
    #: The gate's full answer; None when the gate did not run.
    answer: Answer | None = None


@dataclass(frozen=True)
class CellRunner:
    """Proves wheels in clean environments of cells."""

    #: Its work folder holds each environment while it is in use.
    store: Store
    cells: CellEnvironments
    #: File for the output of all programs.
    log: Path
    #: Called with a short text when a step begins.
    stage: Callable[[str], None] = field(default=lambda _: None)
    #: Whether `run` reads the symbols of the cell's torch, for the check of the linkage.
    linkage: bool = True
    #: Has environments already.
    ahead: Ahead | None = None

    def run(self, cell: Cell, wheel: Path, sha256: str, recipe: Recipe, *, symbols_only: bool = False) -> CellRun:
        """Install the wheel, import it and run the op gate. A MachineFaultError is no fault of the wheel.

        `symbols_only` is for a wheel of which only the linkage in this cell is not decided.
        """
        proofs = CellProofs(sha256, cell)
        symbols, unread = None, list[Proof]()
        try:
            # The cell's packages are installed first: a later failure is then caused by the wheel.
            with self._environment(proofs, cell, cases=recipe.cases is not None and not symbols_only) as environment:
                try:
                    symbols = environment.symbols() if self.linkage else None
                except SymbolsUnreadableError as error:
                    unread = proofs.not_run(str(error), [Check.LINKAGE])
                if symbols_only:
                    return CellRun(symbols, tuple(unread))
                waits = partial(self.stage, f"{WAITS}the proofs of other cells in {cell}")
                with TURNS.turn(alone=environment.alone, on_wait=waits) as cores:
                    found, answer = self._import_and_call(environment, cell, wheel, recipe, proofs, cores)
        except MissingToolError as error:
            return CellRun(None, tuple(proofs.not_run(str(error), [Check.LINKAGE] if symbols_only else CELL_CHECKS)))
        return CellRun(symbols, (*unread, *found), answer)

    def _import_and_call(
        self, environment: CellEnvironment, cell: Cell, wheel: Path, recipe: Recipe, proofs: CellProofs, cores: int
    ) -> tuple[list[Proof], Answer | None]:
        self.stage(f"import in {cell}")
        lacking = ""
        if reason := _install_failure(lambda: environment.install(wheel)):
            outcome = ImportOutcome(Verdict.FAILED, reason, {})
        else:
            outcome = environment.try_import(recipe.modules)
            if outcome.verdict is Verdict.FAILED:
                second_try = _with_stubs if _missing_driver(outcome.reason) else _as_with_gpu
                outcome, lacking = second_try(environment, recipe.modules, outcome, wheel)
            if outcome.verdict is Verdict.FAILED:
                more = import_hints(str(outcome.evidence.get("stderr", "")), wheel, recipe)
                outcome = replace(outcome, evidence=outcome.evidence | ({"hints": more} if more else {}))
        imported = proofs.proof(Check.IMPORT, outcome.verdict, outcome.reason, outcome.evidence)
        if outcome.verdict is Verdict.FAILED:  # settled, because the wheel does not change
            return [imported, *proofs.not_run("the wheel cannot be imported in this cell", settled=True)], None
        if lacking:
            return [imported, *proofs.not_run(lacking)], None
        # Install companions after the import check, which must pass without them. torch before 2.6 compiles no op
        # without NumPy (`builder.gate.torch_limits`), which no torch requires.
        numpy = ["numpy"] if (2, 3) <= (cell.torch.major, cell.torch.minor) < (2, 6) else []
        _install_companions([*recipe.companions, *numpy], partial(environment.install, wheel))
        self.stage(f"run every op in {cell}")
        try:
            answer = environment.run_gate(recipe, cores)
        except MissingToolError as error:  # the environment is lost
            return [imported, *proofs.not_run(str(error))], None
        return [imported, *proofs.of_gate(answer)], answer if isinstance(answer, Answer) else None

    @contextmanager
    def _environment(self, proofs: CellProofs, cell: Cell, *, cases: bool) -> Iterator[CellEnvironment]:
        installs = partial(self.stage, f"install in {cell}")
        if self.ahead and (early := self.ahead.take(cell, installs)):
            made, removal = early
            with removal:
                with self.log.open("ab") as log:
                    log.write(made.log.read_bytes())
                yield replace(made, log=self.log)
            return
        name = f"prove-{work_name(proofs.wheel)}-{cell}"
        with self.store.work(name, lambda who: self.stage(f"{WAITS}{who}, which tests the same wheel")) as folder:
            installs()
            owner = self.store.owner(name)
            with self.cells.open(cell, folder, owner=owner, log=self.log, cases=cases) as environment:
                yield environment


def _install_companions(companions: Sequence[str], install: Callable[[Sequence[str]], None]) -> None:
    """Install as many companions as possible together. The gate reports the others as not run."""
    installed: list[str] = []
    for companion in companions:
        more = [*installed, companion]
        if not _install_failure(partial(install, more), (MissingToolError, BuildError)):
            installed = more


def _install_failure(install: Callable[[], None], errors: tuple[type[BuildfarmError], ...] = _INSTALL_ERRORS) -> str:
    """Return why installation failed, or "". Errors of other types than `errors` are raised."""
    try:
        install()
    except MachineFaultError:
        raise
    except errors as error:
        return f"the wheel cannot be installed: {error.sentence}"
    return ""


def _missing_driver(reason: str) -> str:
    """Why an import failed that needs NVIDIA's driver on a machine without it, or "". This is no fault of the wheel.

    Python code may open the library too, so the libraries of the wheel need not name it.
    """
    found = reports("no-library", reason)
    name = found["library"] if found else ""
    if not is_driver_library(name) or find_library(name.removeprefix("lib").partition(".so")[0]):
        return ""
    return f"it needs {name} of NVIDIA's driver, which is not here"


def _with_stubs(
    environment: CellEnvironment, modules: Sequence[str], outcome: ImportOutcome, wheel: Path
) -> tuple[ImportOutcome, str]:
    """The outcome of an import that lacks the driver, and why the op gate does not run; "" for a failure.

    The modules are imported once more, with stubs of the driver's libraries that the wheel links. Their functions
    return an error, so only a failure with a known cause counts.
    """
    lacking = _missing_driver(outcome.reason)
    with tempfile.TemporaryDirectory() as folder:
        names = make_stubs(wheel, stubs := Path(folder, "stubs"))
        second = environment.try_import(modules, stubs=stubs) if names else outcome
    if second.verdict is Verdict.PASSED:
        reason = f"{second.reason}, with a stub in place of {join_names(names)} of NVIDIA's driver"
        return replace(second, reason=reason, evidence={**second.evidence, "stubs": names}), lacking
    if any(reports(name, second.reason) for name in CAUSES) and not _missing_driver(second.reason):
        return second, ""
    return ImportOutcome(Verdict.NOT_RUN, lacking, {}), lacking


def _as_with_gpu(
    environment: CellEnvironment, modules: Sequence[str], outcome: ImportOutcome, _: Path
) -> tuple[ImportOutcome, str]:
    """The outcome of an import that failed, and why the op gate does not run if the import needs a GPU; else "".

    The modules are imported once more, with a torch.cuda that answers as with a GPU. A module that then gets further
    may fail for another reason, which counts if it is known.
    """
    if "limit" in outcome.evidence:
        return outcome, ""
    second = environment.try_import(modules, as_with_gpu=True)
    if second.verdict is not Verdict.PASSED and not NO_GPU.search(second.reason):
        if not NO_GPU.search(outcome.reason):
            return outcome, ""
        if any(reports(name, second.reason) for name in CAUSES):
            return second, ""
    lacking = f"it needs a GPU when it is imported, and there is none here: {outcome.reason}"
    return ImportOutcome(Verdict.NOT_RUN, lacking, {}), lacking


def not_run_in_cell(reason: str, sha256: str, cell: Cell) -> CellRun:
    """Every check of the cell as not run: this machine cannot provide the cell."""
    return CellRun(None, tuple(CellProofs(sha256, cell).not_run(reason, CELL_CHECKS)))
