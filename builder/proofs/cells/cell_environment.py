"""The environment of a cell: what a proof needs of it, those on this machine, and those made during the compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from builder.errors import BuildfarmError
from builder.gate.draft.result import Drafts
from builder.gate.outcome import Answer
from builder.gate.pack import pack
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.process import Interrupted, kill_orphans
from builder.proofs.cells.import_check import ImportOutcome, try_import
from builder.proofs.cells.op_gate import read_answer, run_gate, run_packed, spec_of
from builder.proofs.cells.turns import TURNS
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.resources import environments_that_fit, measure_resources
from builder.store import Store, work_name
from builder.wheels.toolchain.environments import CELL_MODULES, Environment, Environments, add_bytecode
from builder.wheels.toolchain.uv import UvRun

if TYPE_CHECKING:
    from builder.proofs.cells.container import ContainerEnvironment, ContainerEnvironments

    CellEnvironments: TypeAlias = "LocalEnvironments | ContainerEnvironments"
    CellEnvironment: TypeAlias = "LocalEnvironment | ContainerEnvironment"

#: Seconds for a program to end that is killed.
_LOOK_SECONDS = 0.2


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


def cell_environments(executor: str, matrix: Matrix, store: Store, *, pull: bool) -> CellEnvironments:
    """Where the cells run: in uv environments here or in containers. Raises MissingToolError without an engine."""
    environments = Environments(store, matrix.torch_index)
    if executor == "local":
        return LocalEnvironments(environments)
    # The Docker SDK loads slowly, and a local run does not need it.
    from builder.proofs.cells.container import container_environments  # noqa: PLC0415

    return container_environments(matrix, store, environments, pull=pull)


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
