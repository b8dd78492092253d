"""The table of rooms in ARCHITECTURE.md, from the docstrings of the packages of `builder/`."""

from __future__ import annotations

import ast
from pathlib import Path

import builder
from docs.scripts.markdown import code, one_line, table
from tests.unit.test_structure import ORDER

PACKAGE = Path(builder.__file__).parent
START, END = "<!-- packages -->", "<!-- end of packages -->"


def with_packages(architecture: str) -> str:
    """The text with its table replaced: a room imports only rooms below it, as `ORDER` says."""
    before, start, rest = architecture.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"ARCHITECTURE.md has no lines {START!r} and {END!r}")
    names = list(dict.fromkeys(name.split(".")[1] for name in ORDER))
    rooms = [PACKAGE / name for name in names if (PACKAGE / name).is_dir()]
    rows = [[code(f"{room.name}/"), _purpose(room), _inner(room)] for room in rooms]
    return f"{before}{start}\n{table(['room', 'purpose', 'rooms in it'], rows)}\n{end}{after}"


def _inner(room: Path) -> str:
    inner = sorted(path.parent.relative_to(room) for path in room.rglob("*/__init__.py"))
    return ", ".join(code(f"{folder}/") for folder in inner)


def _purpose(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return one_line(text.split("\n\n", maxsplit=1)[0])
