"""The structure of the package: imports go one way, in no circle, and slow ones only where they are needed."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc, signature
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import pytest

import builder
from builder.cli.app import PLACES, PURPOSES

PACKAGE = Path(builder.__file__).parent

#: Packages and modules in the order of their imports: each may import itself and those after it in this list.
ORDER = [
    "builder.__main__",
    "builder.cli",
    "builder.commands",
    "builder.cli.options",
    "builder.recipes",
    "builder.publish",
    "builder.proofs.verify",
    "builder.proofs.environment",
    "builder.proofs.cells",
    "builder.proofs.inventory",
    "builder.proofs.file_checks",
    "builder.proofs.claimed_cells",
    "builder.proofs.static",
    "builder.proofs",
    "builder.wheels",
    "builder.images",
    "builder.store",
    "builder.records",
    "builder.wheelfile",
    "builder.resources",
    "builder.progress",
    "builder.process",
    "builder.confinement",
    "builder.tested_versions",
    "builder.log",
    "builder.diagnosis",
    "builder.matrix",
    "builder.proof",
    "builder.matrix.axes",
    "builder.formats",
    "builder.untrusted",
    "builder.errors",
    "builder.option",
    "builder.gate.run",
    "builder.gate.starter",
    "builder.gate.draft",
    "builder.gate.processes",
    "builder.gate.checks",
    "builder.gate.imports",
    "builder.gate.system",
    "builder.gate",
]

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


NAMES = {name_of(path) for path in MODULES}


def entry_of(module: str) -> str:
    """Return the longest entry of ORDER that is the module or a package around it."""
    entries = [entry for entry in ORDER if module == entry or module.startswith(f"{entry}.")]
    return max(entries, key=len, default="")


@cache
def tree(path: Path) -> ast.Module:
    """A module of the package, parsed once for all tests."""
    return ast.parse(path.read_text())


def imports_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the modules of the package that these statements import."""
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            modules = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES
            imported.update(modules or {node.module or ""})
    return {name for name in imported if name.startswith("builder.")}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return one circle of a graph, or an empty list."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        found = next((c for other in sorted(graph[name] - {name}) if (c := visit(other, [*path, name]))), [])
        done.add(name)
        return found

    return next((c for name in sorted(graph) if (c := visit(name, []))), [])


def test_imports_go_one_way() -> None:
    offenders = []
    for path in MODULES:
        name, here = name_of(path), entry_of(name_of(path))
        if name == "builder":
            continue
        if not here:
            offenders.append(f"{name} is not in ORDER")
            continue
        for module in imports_in(ast.walk(tree(path))):
            there = entry_of(module)
            if not there:
                offenders.append(f"{module} is not in ORDER")
            elif ORDER.index(there) < ORDER.index(here):
                offenders.append(f"{name} imports {module}")
    assert offenders == []


def test_no_drawers() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc", "types", "core"}
    assert [name_of(path) for path in MODULES if path.stem in drawers] == []


def test_no_import_is_circular() -> None:
    """Also one in a function or for types only: a reader of one module needs the other."""
    graph = {name_of(path): imports_in(ast.walk(tree(path))) & NAMES for path in MODULES}
    assert circle(graph) == []


def test_the_story_of_a_build_is_one_page() -> None:
    """A reader follows one build from its plan to dist/ in this module."""
    text = (PACKAGE / "commands/building/story.py").read_text()
    assert len(text.splitlines()) <= 300
    steps = ("executor.prepare(", "prepare_source(", "compile_wheel(", "repair_wheel(", "prover.prove(")
    assert [step for step in (*steps, "`publish_wheels`") if step not in text] == []


def test_each_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("name", PURPOSES)
def test_a_command_takes_its_options_as_one_object(name: str) -> None:
    """Its parameters are the fields of a dataclass, which is handed on whole; its help is its docstring."""
    module = import_module(f"builder.commands.{PLACES.get(name, name)}")
    functions = [getattr(module, name)] if hasattr(module, name) else module.COMMANDS.values()
    for function in functions:
        assert set(signature(function).parameters) == {"options"}
        assert is_dataclass(get_type_hints(function)["options"])
    if hasattr(module, name):
        first, _, _ = cleandoc(getattr(module, name).__doc__ or "").partition("\n\n")
        assert PURPOSES[name] == " ".join(first.split())


def test_options_are_declared_in_one_way() -> None:
    callers = [name_of(path) for path in MODULES if re.search(r"typer\.(?:Option|Argument)\(", path.read_text())]
    assert callers == ["builder.cli.app", "builder.option"]  # the first has --version, which belongs to no command


def chapters(text: str) -> list[str]:
    """The comments between the definitions of a module that belong to none of them: lines of signs, and headings."""
    lines = ["", *text.splitlines(), ""]
    found = [line for line in lines if re.match(r"# ?[-=#*~]{3,}", line)]
    for before, line in pairwise(lines):
        if before.startswith("#") and not line:
            found.append(before)
    return found


def test_no_module_has_chapters() -> None:
    """A subject with a heading of its own is a module of its own."""
    assert {name_of(path): found for path in MODULES if (found := chapters(path.read_text()))} == {}


def test_chapters_are_found() -> None:
    assert chapters('"""Two things."""\n\n# The second thing.\n\nX = 1\n') == ["# The second thing."]
    assert chapters("# --- second ---\nX = 1\n") == ["# --- second ---"]
    assert chapters("#: Why X is 1.\nX = 1\n\n\ndef f():\n    # Why.\n\n    return X  # as it is\n") == []


def test_circles_are_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


#: Modules that load slowly, and that few commands need.
_SLOW = {
    *("pydantic", "yaml", "jinja2", "elftools", "auditwheel", "abi3info", "requests", "urllib3", "docker"),
    *("http", "ssl", "importlib.metadata"),
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a new process has after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("statement", "slow"),
    [
        pytest.param("import builder.__main__", _SLOW, id="the command line"),
        pytest.param(
            "import builder.commands.verify", _SLOW - {"yaml", "elftools", "auditwheel"}, id="buildfarm verify"
        ),
        pytest.param(
            "import builder.commands.building.build",
            _SLOW - {"pydantic", "yaml", "importlib.metadata"},
            id="buildfarm build, if the store has all",
        ),
    ],
)
def test_packages_of_other_commands_are_not_imported(statement: str, slow: set[str]) -> None:
    assert loaded_by(statement) & slow == set()
