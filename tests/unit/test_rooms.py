"""Imports go one way: a room may use the rooms behind it, never those in front."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import builder

PACKAGE = Path(builder.__file__).parent

#: From the street to the cellar; a module imports only what stands later in this list, or its own room.
ORDER = [
    "builder.__main__",
    "builder.cli",
    "builder.smoke",
    "builder.rebuild",
    "builder.farm",
    "builder.turns",
    "builder.preflight",
    "builder.subjects",
    "builder.publish",
    "builder.result",
    "builder.proofs",
    "builder.wheels",
    "builder.images",
    "builder.store",
    "builder.process",
    "builder.log",
    "builder.proof",
    "builder.matrix",
    "builder.errors",
    "builder.gate",
]

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def room_of(module: str) -> str:
    """The longest entry of ORDER that is the module or holds it."""
    fitting = [room for room in ORDER if module == room or module.startswith(f"{room}.")]
    return max(fitting, key=len, default="")


def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
            found += [f"{node.module}.{alias.name}" for alias in node.names if (PACKAGE / alias.name).is_dir()]
    return [name for name in found if name.startswith("builder.")]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    here = room_of(name_of(path))
    if name_of(path) == "builder":
        return
    assert here, f"{name_of(path)} stands in no room of ORDER"
    for module in imports_of(path):
        there = room_of(module)
        assert there, f"{module} stands in no room of ORDER"
        assert ORDER.index(there) >= ORDER.index(here), f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_drawers(path: Path) -> None:
    assert path.stem not in {"utils", "util", "common", "helpers", "misc", "types", "core"}
