"""Prove one wheel in one cell: create the environment, install the wheel, import it, run the op gate.

Environments are on this machine, some of them made during the compile, or in containers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from builder.diagnosis.known_errors import reports
from builder.errors import BuildError, BuildfarmError, MissingToolError, SymbolsUnreadableError
from builder.gate.amounts import join_names
from builder.gate.draft.result import Drafts
from builder.gate.outcome import Answer
from builder.gate.pack import pack
from builder.gate.torch_limits import NO_GPU
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.process import Interrupted, kill_orphans
from builder.progress.display import WAITS
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.driver import make_stubs
from builder.proofs.cells.import_check import CAUSES, ImportOutcome, import_hints, try_import
from builder.proofs.cells.op_gate import CELL_CHECKS, CellProofs, read_answer, run_gate, run_packed, spec_of
from builder.proofs.cells.turns import TURNS
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.resources import environments_that_fit, measure_resources
from builder.store import Store, work_name
from builder.wheelfile.compatibility import is_driver_library
from builder.wheels.toolchain.environments import CELL_MODULES, Environment, Environments, add_bytecode
from builder.wheels.toolchain.uv import MachineFaultError, UnsatisfiableError, UvRun

if TYPE_CHECKING:
    from builder.proofs.cells.container import ContainerEnvironment, ContainerEnvironments

    CellEnvironments: TypeAlias = "LocalEnvironments | ContainerEnvironments"
    CellEnvironment: TypeAlias = "LocalEnvironment | ContainerEnvironment"

#: Seconds for a program to end that is killed.
_LOOK_SECONDS = 0.2
#: Errors that mean the wheel does not install in its cell. Any other error means that this machine lacks something.
_INSTALL_ERRORS: tuple[type[BuildfarmError], ...] = (UnsatisfiableError, BuildError)


@dataclass(frozen=True)
class LocalEnvironments:
    """Creates environments of cells on this machine."""

    _environments: Environments

    @contextmanager
    def open(
        self, cell: Cell, folder: Path, *, owner: str, log: Path, cases: bool = True
    ) -> Iterator[LocalEnvironment]:
        """Create the environment of a cell with uv; it is removed on exit.

        `folder` exists, is empty and is removed after use. Processes and containers carry `owner`, which no other run
        uses at the same time. `cases` is whether ops will be called. Raises MissingToolError when this machine cannot
        provide the cell.
        """
        interpreter = self._environments.interpreter(cell.python)
        packages = Compat.load().cell_requirements(cell.torch, cell.cuda)
        uv = UvRun(self._environments.torch_index(cell.torch, cell.cuda), log, owner)
        environment = Environment(folder / "env", cell.python, ())
        uv.create(environment.folder, interpreter.path, packages)
        store, modules = self._environments.store, CELL_MODULES if cases else CELL_MODULES[:1]
        add_bytecode(store, environment.interpreter, environment.site_packages, modules, log=log, owner=owner)
        yield LocalEnvironment(uv, environment, packages, folder, owner, log)


@dataclass(frozen=True)
class LocalEnvironment:
    """A clean environment of one cell on this machine, for one wheel. Programs run in processes of their own.

    Here and in a container, each method raises MissingToolError when the environment itself is lost (no container
    engine, no memory). Such an error is no verdict about the wheel.
    """

    #: Whether no other cell may run its wheel while this one does: the memory of the machine is counted for several.
    alone: ClassVar[bool] = False

    _uv: UvRun
    _environment: Environment
    _packages: tuple[str, ...]
    _folder: Path
    _owner: str
    #: Gets the output of programs.
    log: Path

    def symbols(self) -> SymbolTable:
        """What the libraries of the cell's torch and its NVIDIA packages define. Raises SymbolsUnreadableError."""
        return collect_symbols(self._environment.site_packages)

    def install(self, wheel: Path, companions: Sequence[str] = ()) -> None:
        """Install the wheel and its requirements. Raises BuildError if this fails."""
        self._uv.install(self._environment.folder, [*self._packages, str(wheel), *companions])

    def try_import(
        self, modules: Sequence[str], *, as_with_gpu: bool = False, stubs: Path | None = None
    ) -> ImportOutcome:
        """Import the modules, in order; with `as_with_gpu`, torch.cuda answers as on a machine with a GPU.

        `stubs` is a folder with libraries that stand for those of the driver.
        """
        python = self._environment.interpreter
        return try_import(python, modules, owner=self._owner, log=self.log, as_with_gpu=as_with_gpu, stubs=stubs)

    def run_gate(self, recipe: Recipe, cores: int) -> Answer | str:
        """Run the op gate, with so many ops at the same time.

        Return its answer, or a sentence on why there is none, which is a failure of the wheel.
        """
        python = self._environment.interpreter
        return run_gate(python, recipe, self._folder / "gate", jobs=cores, log=self.log, owner=self._owner)

    def draft_cases(self, recipe: Recipe) -> Drafts | str:
        """Draft a case for each op that has none; return the drafts, or a sentence on why there are none."""
        folder = pack(self._folder / "drafts", spec_of(recipe, measure_resources().cores), recipe.cases)
        python = self._environment.interpreter
        status, written = run_packed(python, folder, log=self.log, owner=self._owner, draft=True)
        return read_answer(written, Drafts.from_json, status, self.log)


def cell_environments(executor: str, matrix: Matrix, store: Store) -> CellEnvironments:
    """Where the cells run: in uv environments here or in containers. Raises MissingToolError without an engine."""
    environments = Environments(store, matrix.torch_index)
    if executor == "local":
        return LocalEnvironments(environments)
    # The Docker SDK loads slowly, and a local run does not need it.
    from builder.proofs.cells.container import container_environments  # noqa: PLC0415

    return container_environments(matrix, store, environments)


#: An environment without its wheel, whose log has the output of the programs that made it, and what removes it.
Early = tuple[LocalEnvironment, ExitStack]


class Ahead:
    """The environments of the first cells of a build, one made after the other in a thread.

    They say nothing about a wheel: where one cannot be made now, that is tried again when the wheel is there.
    """

    def __init__(
        self, store: Store, environments: LocalEnvironments, digest: str, cells: Sequence[Cell], *, cases: bool
    ) -> None:
        """Begin. `digest` is that of the build. There are as many as may run, and as the disk has room for."""
        self._store, self._environments, self._digest, self._cases = store, environments, digest, cases
        room = environments_that_fit(store.root) - 1
        self._pool = ThreadPoolExecutor(1)
        wanted = cells[: max(0, min(TURNS.most(), room))]
        self._made: dict[Cell, Future[Early]] = {cell: self._pool.submit(self._make, cell) for cell in wanted}

    def _name(self, cell: Cell) -> str:
        return f"prove-{work_name(self._digest)}-{cell}"

    def _make(self, cell: Cell) -> Early:
        with ExitStack() as stack:
            folder = stack.enter_context(self._store.work(self._name(cell)))
            log, owner = folder / "log", self._store.owner(self._name(cell))
            opened = self._environments.open(cell, folder, owner=owner, log=log, cases=self._cases)
            return stack.enter_context(opened), stack.pop_all()

    def take(self, cell: Cell, on_wait: Callable[[], object] = bool) -> Early | None:
        """The environment of a cell, which the caller removes, maybe after a wait; None if there is none."""
        found = self._made.pop(cell, None)
        if found and not found.cancel():
            on_wait()
            with suppress(BuildfarmError, OSError, Interrupted):
                return found.result()
        return None

    def close(self) -> None:
        """Make no more, and remove those that were not taken."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for cell, made in [*self._made.items()]:
            while made.running():
                kill_orphans(self._store.owner(self._name(cell)))
                wait([made], _LOOK_SECONDS)
            if early := self.take(cell):
                early[1].close()


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
