"""Environments of cells on this machine: made by uv in the visit's folder, with this machine's Pythons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.gate.outcome import Answer
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.requirements import cell_requirements
from builder.proofs.gating import run_gate
from builder.proofs.importing import ImportOutcome, try_import
from builder.proofs.providers import SymbolTable, collect_symbols
from builder.wheels.environment import Environment, Environments
from builder.wheels.resources import measure


class LocalCells:
    """See `CellEnvironments`."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    @contextmanager
    def open(self, cell: Cell, folder: Path, *, job: str, log: Path) -> Iterator[LocalCell]:
        """An environment of uv in `folder`."""
        interpreter = self._environments.interpreter(cell.python)
        default = Compat.load().is_default_variant(cell.torch, cell.cuda)
        own = cell_requirements(cell.torch, cell.cuda, default_variant=default)
        index = self._environments.index_urls(cell.cuda, default_variant=default)
        environment = Environment(folder / "env", cell.python, ())
        self._environments.create(environment.folder, interpreter, own, index=index, log=log, job=job)
        yield LocalCell(self._environments, environment, own, tuple(index), folder, job, log)


@dataclass(frozen=True)
class LocalCell:
    """See `CellEnvironment`."""

    _environments: Environments
    _environment: Environment
    _own: tuple[str, ...]
    _index: tuple[str, ...]
    _folder: Path
    _job: str
    _log: Path

    def symbols(self) -> SymbolTable:
        """Read from the environment's files."""
        return collect_symbols(self._environment.site_packages)

    def install(self, wheel: Path, companions: Sequence[str] = ()) -> None:
        """Install with uv."""
        wanted = [*self._own, str(wheel), *companions]
        folder = self._environment.folder
        self._environments.install(folder, wanted, index=self._index, log=self._log, job=self._job)

    def try_import(self, modules: Sequence[str]) -> ImportOutcome:
        """Import in a process of the environment's Python."""
        return try_import(self._environment.interpreter, modules)

    def run_gate(self, recipe: Recipe) -> Answer | str:
        """Run the gate with the environment's Python."""
        return run_gate(
            self._environment.interpreter,
            recipe,
            self._folder / "gate",
            jobs=measure().cores,
            log=self._log,
            job=self._job,
        )
