"""The table of packages in ARCHITECTURE.md, from the docstrings of `builder/`."""

from __future__ import annotations

import ast
from pathlib import Path

import builder
from docs.scripts.markdown import code, one_line, table

PACKAGE = Path(builder.__file__).parent
START, END = "<!-- packages -->", "<!-- end of packages -->"


def with_packages(architecture: str) -> str:
    """The text with its table replaced."""
    before, start, rest = architecture.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"ARCHITECTURE.md has no lines {START!r} and {END!r}")
    folders = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))
    rows = [[code(_name(folder)), _purpose(folder)] for folder in folders]
    return f"{before}{start}\n{table(['package', 'purpose'], rows)}\n{end}{after}"


def _name(folder: Path) -> str:
    return f"{folder.relative_to(PACKAGE.parent)}/"


def _purpose(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return one_line(text.split("\n\n", maxsplit=1)[0])
