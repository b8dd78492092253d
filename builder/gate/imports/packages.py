"""Imports of installed packages without code of the wheel, as the judge and the starter need it.

Needs no torch. Modules of the wheel are replaced by stubs, which raise when cases.py uses them.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

#: How a line of a `.pth` file begins that is executed (the module `site` of Python).
_CODE = ("import ", "import\t")


class NeedsExtensionError(AttributeError):
    """cases.py uses the extension, so the judge cannot execute this part of it."""


def needs_extension(error: BaseException | None) -> bool:
    """Whether an exception, or one that caused it, says that cases.py uses the extension."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, NeedsExtensionError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def is_startup_file(path: str) -> bool:
    """Whether Python reads a file when it starts: `path` is that below site-packages, or an absolute one."""
    name = path.rpartition("/")[2]
    return name.endswith((".pth", ".start")) or name.partition(".")[0] in ("sitecustomize", "usercustomize")


def startup_code(name: str, text: str) -> str:
    """The first line of a start-up file that Python executes; empty if there is none. `name` is its file name.

    A line of a `.start` file names a function that Python 3.15 calls (PEP 829).
    """
    if name.endswith(".pth"):
        return next((line for line in text.splitlines() if line.startswith(_CODE)), "")
    return next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")


def add_packages() -> None:
    """Add the folders of installed packages to the path, in a Python that was started with -S.

    Python itself would execute lines of `.pth` files, functions that `.start` files name (Python 3.15, PEP 829), and a
    module `sitecustomize`, which any wheel may contain.
    """

    def add_paths(folder: str, name: str, known: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        try:
            lines = Path(folder, name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return known
        for line in lines:
            path = Path(folder, line.strip())
            if line.strip() and not line.startswith(("#", *_CODE)) and path.is_dir():
                sys.path.append(os.path.realpath(path))
        return known

    replaced: dict[tuple[Any, str], Any] = {
        (site, "execsitecustomize"): lambda: None,
        (site, "execusercustomize"): lambda: None,
    }
    if state := getattr(site, "StartupState", None):  # Python 3.15 calls these methods instead of `addpackage`
        extend = state._extend_syspath

        def extend_by_real_paths(self: Any) -> None:  # noqa: ANN401
            self._path_entries = [(file, os.path.realpath(path) if file else path) for file, path in self._path_entries]
            extend(self)

        replaced[state, "_extend_syspath"] = extend_by_real_paths
        replaced |= {(state, name): lambda _: None for name in ("_exec_imports", "_execute_start_entrypoints")}
    else:
        replaced[site, "addpackage"] = add_paths
    own = {(where, name): getattr(where, name) for where, name in replaced}
    for (where, name), function in replaced.items():
        setattr(where, name, function)
    site.main()
    for (where, name), function in own.items():
        setattr(where, name, function)


def execute_startup_code() -> None:
    """Execute what `add_packages` has left out: `.pth` and `.start` files, and a module `sitecustomize`."""
    site.main()


def files_of(distribution: str) -> frozenset[str]:
    """Return the paths and the real paths of the files that an installed wheel lists; empty if it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - loads slowly; `verify` needs none of it

    try:
        files = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        return frozenset()
    paths = [str(file.locate()) for file in files]
    return frozenset([*paths, *map(os.path.realpath, paths)])


class WithoutExtension(MetaPathFinder):
    """Finds modules of the wheel before Python does, and gives stubs instead.

    A module outside the packages of the recipe, such as a `numpy` that the wheel contains, is not found.
    """

    def __init__(self, imports: Collection[str], files: Collection[str]) -> None:
        """`imports` are the modules of the recipe, `files` the paths of the files of the wheel."""
        self._stubs = set(imports)
        self._parents = {name.rpartition(".")[0] for name in imports if "." in name}
        self._tops = {name.partition(".")[0] for name in imports}
        self._files = files
        self.used = False  # whether it has replaced a module of the wheel

    def install(self) -> None:
        """Look before Python looks in folders, and after it has looked among its built-in modules."""
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def remove(self) -> None:
        """Undo `install`."""
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:  # noqa: ANN401
        """Return the spec of a stub for a module of the wheel; else what Python finds."""
        if name in self._stubs or name.rpartition(".")[0] in self._stubs:
            return self._stub(name)
        spec = PathFinder.find_spec(name, path, target)
        if name in self._parents and (spec is None or spec.origin):  # and no folder that several packages share
            return self._stub(name)
        if spec is None or spec.origin not in self._files:
            return spec
        if name.partition(".")[0] in self._tops:
            return self._stub(name)
        self.used = True
        raise ModuleNotFoundError(f"{name} is a file of the wheel, which the judge does not import", name=name)

    def _stub(self, name: str) -> ModuleSpec:
        self._stubs.add(name)
        self.used = True
        return ModuleSpec(name, _StubLoader(), is_package=True)


class _StubLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.__name__}.{name}")


class Stub:
    """A name that cases.py imports from the extension. It can be stored, and raises when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _use(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        raise NeedsExtensionError(f"{self._name} belongs to the extension")

    __call__ = __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = __enter__ = __exit__ = _use
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = _use

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(name)
        return self._use()
