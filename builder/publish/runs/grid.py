"""The tables of tested cells in the report of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.matrix.axes import Cell


@dataclass(frozen=True)
class Field:
    """One cell in the table."""

    #: A level, `failed` or `not built`; empty: not tested.
    state: str = ""
    #: The GPU models on which every op was checked.
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One torch, CUDA and platform: a field for each Python of the table."""

    torch: str
    cuda: str
    platform: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Grid:
    """The table of cells: a column for each of `pythons`, and `rows` with the newest torch first."""

    pythons: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def has_platforms(self) -> bool:
        """Whether the rows are of more than one platform."""
        return len({row.platform for row in self.rows}) > 1


def grid_of(fields: Mapping[Cell, Field]) -> Grid:
    """The table with these fields; a cell between them that has none is empty."""
    pythons = sorted({cell.python for cell in fields})
    rows = []
    for torch, cuda, platform in sorted({(cell.torch, cell.cuda, cell.platform) for cell in fields}, reverse=True):
        row = tuple(fields.get(Cell(torch, cuda, python, platform), Field()) for python in pythons)
        rows.append(Row(str(torch), str(cuda), str(platform), row))
    return Grid(tuple(map(str, pythons)), tuple(rows))
