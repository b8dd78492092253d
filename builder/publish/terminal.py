"""Text for stdout: plain in a file or a pipe, with colours and the terminal's width in a terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Collection

from rich.console import Console
from rich.table import Table

from builder.log import PlainConsole

#: Columns of the text where stdout is not a terminal: enough for the longest wheel name and its figures.
PLAIN_WIDTH = 200


def output_width() -> int:
    """How many columns a line on stdout may have."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH


def plain_table(*columns: str, right: Collection[str] = ()) -> Table:
    """A table without lines; no cell is folded, and the columns in `right` are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def fits(table: Table) -> bool:
    """Whether a table can be printed without folding or cutting a cell."""
    return Console(width=10_000).measure(table).maximum <= output_width()


def to_text(*parts: Table | str) -> str:
    """Tables and lines as text; the lines may contain rich markup and are not wrapped."""
    stream = io.StringIO()
    # With NO_COLOR, rich still writes bold headings.
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = PlainConsole(file=stream, force_terminal=styled, width=output_width(), highlight=False, emoji=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
