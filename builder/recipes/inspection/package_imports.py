"""The Python packages of a source, and what they import when they are imported. Nothing is executed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.diagnosis.known_errors import knowledge
from builder.recipes.inspection.metadata import PackagePlaces

_NOT_INSTALLED = {"test", "tests", "docs", "doc", "examples", "example", "benchmark", "benchmarks", "scripts", "tools",
                  "build", "dist", "third_party", "conda", "samples", "cmake"}  # fmt: skip


@dataclass(frozen=True)
class PackageFacts:
    """The packages of a source."""

    #: Top-level packages and modules that the wheel installs.
    packages: tuple[str, ...]
    #: Top-level modules of others that are needed at import.
    imported: tuple[str, ...]
    #: Whether importing the first package imports torch.
    imports_torch: bool


def read_packages(tree: Path, project: str, extensions: set[str], places: PackagePlaces) -> PackageFacts:
    """Find the packages of a source tree.

    `extensions` are the top-level names of its compiled modules, `places` are the folders that the source names.
    """
    bases = [tree / name for name in places.bases] or [tree, tree / "src", tree / "python"]
    wanted = canonicalize_name(project)
    # In a source that names no folder, a folder without `__init__.py` may hold anything.
    inner = [each for each in _namespace_homes(bases) if places.bases or canonicalize_name(each[0]) == wanted]
    homes = dict(reversed(list(_homes(bases)))) or dict(inner)
    placed = {name: tree / path for name, path in places.packages}
    homes |= {name: home for name, home in placed.items() if (home / "__init__.py").is_file()}
    for listed in sorted(tree.glob("*.egg-info/top_level.txt")):
        names = listed.read_text(encoding="utf-8", errors="replace").split()
        homes = {name: home for name, home in homes.items() if name.partition(".")[0] in names} or homes
    named = [name for name in homes if canonicalize_name(name) == wanted]
    packages = tuple(named or sorted(homes))
    imported: set[str] = set()
    for name in packages:
        imported |= _reachable(homes[name], name)
    others = imported - {name.partition(".")[0] for name in homes} - extensions - sys.stdlib_module_names
    return PackageFacts(packages, tuple(sorted(others - {"torch", "triton"})), "torch" in imported)


def project_of(module: str) -> str:
    """The requirement that is known to install a module, or "": a project of its name may be somebody else's."""
    return knowledge().modules.get(module, "")


def provides(project: str, module: str) -> bool:
    """Whether a project seems to install a module, by its name: `stanford-stk` and `pystk` the module `stk`."""
    known = project_of(module)
    if known and canonicalize_name(Requirement(known).name) == canonicalize_name(project):
        return True
    name = re.escape(canonicalize_name(module))
    return re.search(rf"(?:^|-)(?:py|python-)?{name}(?:-|$)", canonicalize_name(project)) is not None


def _homes(bases: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for base in bases:
        for path in sorted(base.glob("*/__init__.py")):
            if path.parent.name not in _NOT_INSTALLED:
                yield path.parent.name, path.parent


def _namespace_homes(bases: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Packages in a folder without `__init__.py`: `a.b` for `a/b/__init__.py` (PEP 420)."""
    for base in bases:
        for path in sorted(base.glob("*/*/__init__.py")):
            parts = path.parent.relative_to(base).parts
            if _NOT_INSTALLED.isdisjoint(parts) and all(part.isidentifier() for part in parts):
                yield ".".join(parts), path.parent


def _reachable(home: Path, name: str) -> set[str]:
    """The top-level modules of others that an import of the package imports, through its own modules."""
    pending, seen, found, own = [(home / "__init__.py", name)], set[Path](), set[str](), set[str]()
    if b"sys.path" in (home / "__init__.py").read_bytes():  # its modules may then be imported without its name
        own = {path.stem for path in home.glob("*.py")}
    while pending:
        path, module = pending.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        own |= set(_placed(tree))
        for dotted in _imports(tree.body, module, package=path.name == "__init__.py"):
            if not f"{dotted}.".startswith(f"{name}."):
                found.add(dotted.partition(".")[0])
                continue
            parts = dotted.split(".")[name.count(".") + 1 :]
            for depth in range(1, len(parts) + 1):
                inner = home.joinpath(*parts[:depth])
                pending += [(inner / "__init__.py", f"{name}.{'.'.join(parts[:depth])}")]
                pending += [(inner.with_suffix(".py"), f"{name}.{'.'.join(parts[:depth])}")]
    return found - own


def _placed(module: ast.Module) -> Iterator[str]:
    """The modules that a module puts into `sys.modules` by name."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(value=str(name)))]
            ):
                yield name.partition(".")[0]


def _imports(body: list[ast.stmt], module: str, *, package: bool) -> Iterator[str]:
    """Full names of what statements import when they run. Imports inside functions and `try` are optional."""
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = module.split(".")
                prefix = ".".join(base[: len(base) - level + package]) if level else ""
                start = ".".join(part for part in (prefix, source or "") if part)
                yield start
                yield from (f"{start}.{alias.name}" for alias in names if level or start.partition(".")[0] == base[0])
            case ast.If(test=test, body=then, orelse=otherwise):
                if "TYPE_CHECKING" not in ast.dump(test):
                    yield from _imports([*then, *otherwise], module, package=package)
            case ast.With(body=inner):
                yield from _imports(inner, module, package=package)
