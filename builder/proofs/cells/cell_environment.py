"""The protocol of a cell's environment: what a proof needs of it, on this machine or in a container."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from builder.gate.draft.result import Drafts
from builder.gate.outcome import Answer
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proofs.cells.import_check import ImportOutcome
from builder.proofs.static.symbol_table import SymbolTable


class CellEnvironment(Protocol):
    """A clean environment of one cell, for one wheel. Programs run in processes of their own.

    Each method raises MissingToolError when the environment itself is lost (no container engine, no memory). That
    says nothing about the wheel.
    """

    def symbols(self) -> SymbolTable:
        """Return what the libraries of the cell's torch and its NVIDIA packages define."""
        ...

    def install(self, wheel: Path, companions: Sequence[str] = ()) -> None:
        """Install the wheel and its requirements; the cell's torch does not change.

        Raises UnsatisfiableError or BuildError when the installation fails, DiskFullError and KilledError.
        """
        ...

    def try_import(self, modules: Sequence[str]) -> ImportOutcome:
        """Import the modules, in order."""
        ...

    def run_gate(self, recipe: Recipe) -> Answer | str:
        """Run the op gate with the recipe's cases; return its answer, or a sentence on why there is none.

        A gate without an answer is a failure of the wheel.
        """
        ...

    def draft_cases(self, recipe: Recipe) -> Drafts | str:
        """Draft a case for each op that has none; return the drafts, or a sentence on why there are none."""
        ...


class CellEnvironments(Protocol):
    """Creates environments of cells."""

    def open(
        self, cell: Cell, folder: Path, *, owner: str, log: Path, cases: bool = True
    ) -> AbstractContextManager[CellEnvironment]:
        """Create the environment of a cell; it is removed on exit.

        `folder` exists, is empty and is removed after use. Processes and containers carry `owner`, which no other run
        uses at the same time. `cases` is whether ops will be called. Raises MissingToolError when this machine cannot
        provide the cell.
        """
        ...
