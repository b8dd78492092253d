"""The Python packages of a source, and what they import when they are imported. Nothing is executed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

_NOT_INSTALLED = {"test", "tests", "docs", "doc", "examples", "example", "benchmark", "benchmarks", "scripts", "tools",
                  "build", "dist", "third_party", "conda", "samples", "cmake"}  # fmt: skip
#: Modules whose project has a different name (PyPI).
_PROJECTS = {
    "cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn", "skimage": "scikit-image",
    "yaml": "pyyaml", "attr": "attrs", "pkg_resources": "setuptools<82", "google": "protobuf",
    "_distutils_hack": "setuptools", "dateutil": "python-dateutil", "pytorch_lightning": "pytorch-lightning",
}  # fmt: skip


@dataclass(frozen=True)
class PackageFacts:
    """The packages of a source."""

    #: Top-level packages and modules that the wheel installs.
    packages: tuple[str, ...]
    #: Top-level modules of others that are needed at import.
    imported: tuple[str, ...]
    #: Whether importing the first package imports torch.
    imports_torch: bool


def read_packages(tree: Path, project: str, extensions: set[str], package_dir: object) -> PackageFacts:
    """Find the packages of a source tree.

    `extensions` are the top-level names of its compiled modules, `package_dir` is the argument of `setup()`.
    """
    folders = package_dir if isinstance(package_dir, dict) else {}
    base = folders.get("")
    bases = [tree / base] if isinstance(base, str) and "*" not in base else [tree, tree / "src", tree / "python"]
    homes = {path.name: path for path in reversed(list(_homes(bases)))}
    placed = {name: tree / str(path) for name, path in folders.items() if name.isidentifier()}
    homes |= {name: home for name, home in placed.items() if (home / "__init__.py").is_file()}
    for listed in sorted(tree.glob("*.egg-info/top_level.txt")):
        names = listed.read_text(encoding="utf-8", errors="replace").split()
        homes = {name: homes[name] for name in names if name in homes} or homes
    wanted = canonicalize_name(project)
    named = [name for name in homes if canonicalize_name(name) == wanted]
    packages = tuple(named or sorted(homes))
    imported: set[str] = set()
    for name in packages:
        imported |= _reachable(homes[name], name)
    others = imported - set(homes) - extensions - sys.stdlib_module_names
    return PackageFacts(packages, tuple(sorted(others - {"torch", "triton"})), "torch" in imported)


def project_of(module: str) -> str:
    """The project that most likely installs a module."""
    return _PROJECTS.get(module, module)


def _homes(bases: list[Path]) -> Iterator[Path]:
    for base in bases:
        for path in sorted(base.glob("*/__init__.py")):
            if path.parent.name not in _NOT_INSTALLED:
                yield path.parent


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
            if dotted.partition(".")[0] != name:
                found.add(dotted.partition(".")[0])
                continue
            parts = dotted.split(".")[1:]
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
