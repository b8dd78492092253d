"""What an import of a package imports of others, through its own modules: read from their text, nothing is executed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.diagnosis.known_errors import knowledge
from builder.diagnosis.setup_script import parse_python


def imported_by(home: Path, name: str) -> set[str]:
    """The top-level modules of others that `import name` imports; `home` is the package's folder, or a module's file.

    Imports inside functions and `try` are optional, and do not count.
    """
    pending, seen, found = [(home if home.is_file() else home / "__init__.py", name)], set[Path](), set[str]()
    while pending:
        path, module = pending.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        try:
            body = parse_python(path.read_bytes()).body
        except (SyntaxError, ValueError):
            continue
        for dotted in _imports(body, module, package=path.name == "__init__.py"):
            first, *parts = dotted.split(".")
            if first != name:
                found.add(first)
            for depth in range(1, len(parts) + 1) if first == name else ():
                inner, full = home.joinpath(*parts[:depth]), ".".join([name, *parts[:depth]])
                pending += [(inner / "__init__.py", full), (inner.with_suffix(".py"), full)]
    return found - sys.stdlib_module_names


def undeclared(modules: Iterable[str], declared: Iterable[Requirement]) -> dict[str, str]:
    """The modules whose project is known and not among the requirements, each with the requirement to add."""
    projects = {canonicalize_name(requirement.name) for requirement in declared}
    known = {name: requirement for name in modules if (requirement := knowledge().modules.get(name))}
    names = {name: canonicalize_name(Requirement(requirement).name) for name, requirement in known.items()}

    def provided(name: str) -> bool:  # by a project of a similar name too: `stanford-stk` installs the module `stk`
        word = rf"(?:^|-)(?:py|python-)?{re.escape(canonicalize_name(name))}(?:-|$)"
        return names[name] in projects or any(re.search(word, project) for project in projects)

    return {name: requirement for name, requirement in sorted(known.items()) if not provided(name)}


def _imports(body: list[ast.stmt], module: str, *, package: bool) -> Iterator[str]:
    """Full names of what statements import when they run."""
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = module.split(".")
                prefix = base[: len(base) - level + package] if level else []
                start = ".".join([*prefix, *([source] if source else [])])
                yield start
                yield from (f"{start}.{alias.name}" for alias in names)
            case ast.If(test=test, body=then, orelse=otherwise):
                if "TYPE_CHECKING" not in ast.dump(test):
                    yield from _imports([*then, *otherwise], module, package=package)
