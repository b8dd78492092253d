"""What the import of the extension brought: dispatcher ops, functions of its compiled modules, its cases.

Executes nothing. An op is the extension's own if the library that registered it lies in the package (or distribution)
that was asked for; what a dependency registers on the way, such as torchvision, is not under test.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import torch

from builder.gate.case import Case
from builder.gate.context import CaseError, resolve, sentence

#: Namespaces that torch itself fills, some of them late, on an import inside a user's call.
_TORCH_NAMESPACES = frozenset(
    {
        "aten",
        "prim",
        "prims",
        "prepacked",
        "quantized",
        "_quantized",
        "quantized_decomposed",
        "onednn",
        "mkldnn",
        "mkl",
        "xnnpack",
        "sparse",
        "nested",
        "inductor",
        "_inductor_test",
        "debugprims",
        "rngprims",
        "higher_order",
        "streams",
        "c10d",
        "c10d_functional",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "symm_mem",
        "_dtensor",
        "fsdp",
        "profiler",
        "static_runtime",
        "torch_attn",
        "metal",
        "vulkan",
        "vulkan_prepack",
        "mtia",
        "mkldnn_prepacked",
        "cuda",
        "_test",
        "export",
        "bc",
        "_export",
        "_TorchScriptTesting",
        "static",
        "prepared",
        "rng_prims",
        "subclass_parametrization",
        "torch",
        "triton",
        "dynamo",
        "flash_attn_3_torch",
    }
)


def where() -> dict[str, Any]:
    """The machine and its torch, without touching a GPU."""
    libc, version = platform.libc_ver()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "glibc": version if libc == "glibc" else "",
        "machine": platform.machine(),
    }


def one_line(error: BaseException) -> str:
    """An exception in one line, with the place in the file for a syntax error."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({Path(error.filename or '').name}, line {error.lineno})"
    return sentence(error, 500)


class Watch:
    """Tells which library registered which ops, while it is entered, by looking before and after each is loaded."""

    def __init__(self, imports: Sequence[str]) -> None:
        self.imports = tuple(imports)
        #: op to the file that registered it, or to "" for one registered from Python
        self.registered: dict[str, str] = {}
        #: modules compiled, by name
        self.modules: dict[str, str] = {}
        self._known = set(_op_names())
        self._namespaces = {name.partition("::")[0] for name in self._known} | _TORCH_NAMESPACES

    def __enter__(self) -> Watch:
        self._saved = (ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module, torch.ops.load_library)
        create, execute, load = self._saved

        def create_module(loader: Any, spec: Any) -> Any:  # noqa: ANN401
            with _Loading(self, loader.path):
                return create(loader, spec)

        def exec_module(loader: Any, module: Any) -> Any:  # noqa: ANN401
            with _Loading(self, loader.path):
                done = execute(loader, module)
            self.modules[module.__name__] = loader.path
            return done

        def load_library(path: Any) -> Any:  # noqa: ANN401
            with _Loading(self, str(path)):
                return load(path)

        ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign, assignment]
        ExtensionFileLoader.exec_module = exec_module  # type: ignore[method-assign, assignment]
        torch.ops.load_library = load_library
        return self

    def __exit__(self, *_: object) -> None:
        create, execute, _ = self._saved
        ExtensionFileLoader.create_module = create  # type: ignore[method-assign]
        ExtensionFileLoader.exec_module = execute  # type: ignore[method-assign]
        del torch.ops.load_library  # the class's own shows again
        self.note("")

    def note(self, path: str) -> None:
        """Whatever is new was registered by this library."""
        for name in _op_names():
            if name not in self._known:
                self._known.add(name)
                self.registered[name] = path

    def own(self) -> list[str]:
        """The ops of the extension, sorted."""
        mine = _Ownership(self.imports)
        return sorted(
            name
            for name, path in self.registered.items()
            if (mine(path) if path else name.partition("::")[0] not in self._namespaces)
        )

    def own_modules(self) -> list[str]:
        """The compiled modules of the extension, sorted."""
        mine = _Ownership(self.imports)
        return sorted(name for name, path in self.modules.items() if mine(path))


class _Loading:
    def __init__(self, watch: Watch, path: str) -> None:
        self._watch, self._path = watch, path

    def __enter__(self) -> None:
        self._watch.note("")

    def __exit__(self, *_: object) -> None:
        self._watch.note(self._path)


class _Ownership:
    """Whether a file belongs to what was imported: it lies in its package, or in the same distribution."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._tops = {name.partition(".")[0] for name in imports}
        self._folders: list[str] = []
        self._files: set[str] = set()
        for top in self._tops:
            module = sys.modules.get(top)
            self._folders += [os.path.realpath(folder) + os.sep for folder in getattr(module, "__path__", [])]
            if getattr(module, "__file__", None):
                self._files.add(os.path.realpath(str(module.__file__)))  # type: ignore[union-attr]
        self._distributed: set[str] | None = None

    def __call__(self, path: str) -> bool:
        real = os.path.realpath(path)
        if real in self._files or any(real.startswith(folder) for folder in self._folders):
            return True
        if self._distributed is None:
            self._distributed = set(self._of_distributions())
        return real in self._distributed

    def _of_distributions(self) -> Iterator[str]:
        for distribution in importlib.metadata.distributions():
            files = distribution.files or []
            if any(file.parts[0].partition(".")[0] in self._tops for file in files):
                for file in files:
                    if file.suffix == ".so":
                        yield os.path.realpath(str(distribution.locate_file(file)))


def _op_names() -> list[str]:
    return torch._C._dispatch_get_all_op_names()  # type: ignore[no-any-return]


def ops(watch: Watch, public: Sequence[str]) -> list[str]:
    """Everything that needs a case: dispatcher ops, functions of compiled modules, callables of PUBLIC modules."""
    found = watch.own()
    for name in watch.own_modules():
        found += _functions(name, sys.modules.get(name), every=True)
    for name in public:
        try:
            found += _functions(name, importlib.import_module(name), every=False)
        except ImportError:
            found.append(f"{name}.*")  # no case has such a name: the check "ops" will show it
    return sorted(set(found))


def _functions(name: str, module: Any, *, every: bool) -> list[str]:  # noqa: ANN401
    """Public functions, classes not among them: of a compiled module all, else those it exports as its own."""
    listed = getattr(module, "__all__", None)
    names = [one for one in (listed or vars(module) if module else ()) if listed or not one.startswith("_")]
    found = []
    for one in names:
        value = getattr(module, one, None)
        if not callable(value) or isinstance(value, type):
            continue
        home = getattr(value, "__module__", None) or name
        if every or listed or home == name or home.startswith(f"{name}."):
            found.append(f"{name}.{one}")
    return found


def load_cases(root: Path) -> tuple[tuple[Case, ...], tuple[str, ...], str]:
    """CASES and PUBLIC of cases.py, and what is wrong with it, in a sentence, or nothing."""
    if not (root / "cases.py").is_file():
        return (), (), "there is no cases.py: write one, with a list CASES of builder.gate.Case"
    try:
        module = importlib.import_module("cases")
    except BaseException as error:  # noqa: BLE001 (SystemExit is a fault like any other)
        at = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent == root]
        line = f", line {at[-1].lineno}" if at and not isinstance(error, SyntaxError) else ""
        return (), (), f"cases.py does not import{line}: {one_line(error)}"
    for name in ("CASES", "PUBLIC"):
        if not isinstance(getattr(module, name, ()), (list, tuple)):
            return (), (), f"{name} of cases.py is a {type(getattr(module, name)).__name__}: it must be a list"
    cases = tuple(getattr(module, "CASES", ()))
    public = tuple(getattr(module, "PUBLIC", ()))
    wrong = [one for one in cases if not isinstance(one, Case)]
    if wrong:
        return (), public, f"CASES of cases.py holds a {type(wrong[0]).__name__}: only builder.gate.Case may be in it"
    return cases, public, "" if cases else "cases.py holds no case: it must define a list CASES"


def case_facts(number: int, case: Case, imported: bool) -> dict[str, Any]:
    """`tasks.CaseFacts` of a case."""
    missing = "the extension does not import"
    if imported:
        try:
            resolve(case.op)
            missing = ""
        except CaseError as error:
            missing = str(error)
        except Exception as error:  # noqa: BLE001 (a lazy module runs its own code here)
            missing = f"looking {case.op} up raises {sentence(error)}"
    return {
        "number": number,
        "op": case.op,
        "name": case.name,
        "edge": case.edge,
        "devices": list(case.devices),
        "not_claimed": dict(case.not_claimed),
        "missing": missing,
    }
