"""What a visit to a cell needs of it: an environment with the cell's own torch, made and taken away by either way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from builder.gate.outcome import Answer
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proofs.importing import ImportOutcome
from builder.proofs.providers import SymbolTable


class CellEnvironment(Protocol):
    """A clean environment of one cell, for one wheel. Programs in it start in processes of their own.

    Each method raises MissingToolError when the environment itself is lost (an engine gone, no memory left): that
    says nothing about the wheel.
    """

    def symbols(self) -> SymbolTable:
        """What the libraries of the cell's torch and its NVIDIA packages define."""
        ...

    def install(self, wheel: Path, companions: Sequence[str] = ()) -> None:
        """Install the wheel and what it requires beside the cell's torch, which stays as it is.

        Raises UnsatisfiableError or BuildError where it does not go in, DiskFullError and KilledError.
        """
        ...

    def try_import(self, modules: Sequence[str]) -> ImportOutcome:
        """Import the modules, in order."""
        ...

    def run_gate(self, recipe: Recipe) -> Answer | str:
        """Run the op gate with the recipe's cases; its answer, or a sentence on why there is none."""
        ...


class CellEnvironments(Protocol):
    """A way to have environments of cells."""

    def open(self, cell: Cell, folder: Path, *, job: str, log: Path) -> AbstractContextManager[CellEnvironment]:
        """The environment of a cell, gone afterwards.

        `folder` exists, is empty and goes away with the visit; programs carry the mark `job`, under which nobody else
        works. Raises MissingToolError when the cell is not to be had here.
        """
        ...
