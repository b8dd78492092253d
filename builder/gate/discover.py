"""Finds what the import of the extension registers: dispatcher ops and functions of compiled modules.

Runs no op. An op belongs to the extension if the library that registered it is in the imported package or its
distribution. Ops of a dependency that the import loads too, such as torchvision, are not tested.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from builder.gate.context import sentence
from builder.gate.coverage import PLAIN_CALL, PLAIN_TYPES

#: Namespaces of torch itself. torch registers some of them late, on an import inside a call.
_TORCH_NAMESPACES = {
    "aten", "prim", "prims", "prepacked", "quantized", "_quantized", "quantized_decomposed", "onednn", "mkldnn",
    "mkl", "xnnpack", "sparse", "nested", "inductor", "_inductor_test", "debugprims", "rngprims", "higher_order",
    "streams", "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor",
    "fsdp", "profiler", "static_runtime", "torch_attn", "metal", "vulkan", "vulkan_prepack", "mtia",
    "mkldnn_prepacked", "cuda", "_test", "export", "flex_lib", "onnx", "onnx_symbolic", "bc", "_export",
    "_TorchScriptTesting", "static", "prepared", "rng_prims", "subclass_parametrization", "torch", "triton",
    "dynamo", "flash_attn_3_torch",
}  # fmt: skip


def where() -> dict[str, Any]:
    """Return the machine and the versions of torch, CUDA, Python and glibc, without touching a GPU."""
    libc, version = platform.libc_ver()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "glibc": version if libc == "glibc" else "",
        "machine": platform.machine(),
    }


def one_line(error: BaseException) -> str:
    """Return an exception and its cause in one line; for a syntax error with file and line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({Path(error.filename or '').name}, line {error.lineno})"
    cause = error.__cause__  # torch.ops.load_library says "Could not load this library" from the error of the loader
    return sentence(error, 500) + (f", because of {sentence(cause, 500)}" if cause else "")


class RegistrationRecorder:
    """Records which library registers which ops: as a context manager it compares the ops around each load."""

    def __init__(self, imports: Sequence[str]) -> None:
        self.imports = tuple(imports)
        #: op to the file of the library that registered it, or of the Python module; "" if it is not known
        self.registered: dict[str, str] = {}
        #: name of each compiled module to its file
        self.modules: dict[str, str] = {}
        self._known = set(_op_names())
        self._namespaces = {name.partition("::")[0] for name in self._known} | _TORCH_NAMESPACES

    def __enter__(self) -> RegistrationRecorder:
        self._saved = (ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module, torch.library.Library.define)
        create, execute, define_op = self._saved
        load = torch.ops.load_library

        def create_module(loader: Any, spec: Any) -> Any:  # noqa: ANN401
            with self._loading(loader.path):
                return create(loader, spec)

        def exec_module(loader: Any, module: Any) -> Any:  # noqa: ANN401
            with self._loading(loader.path):
                done = execute(loader, module)
            self.modules[module.__name__] = loader.path
            return done

        def load_library(path: Any) -> Any:  # noqa: ANN401
            with self._loading(str(path)):
                return load(path)

        def define(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - `custom_op` calls it too
            with self._loading(_imported_module()):
                return define_op(*arguments, **options)

        torch.library.Library.define = define
        ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign, assignment]
        ExtensionFileLoader.exec_module = exec_module  # type: ignore[method-assign, assignment]
        torch.ops.load_library = load_library
        return self

    def __exit__(self, *_: object) -> None:
        create, execute, torch.library.Library.define = self._saved
        ExtensionFileLoader.create_module = create  # type: ignore[method-assign]
        ExtensionFileLoader.exec_module = execute  # type: ignore[method-assign]
        del torch.ops.load_library  # the method of the class is visible again
        self._note("")

    @contextmanager
    def _loading(self, path: str) -> Iterator[None]:
        """Record this library for the ops that are new afterwards, and none for those that are new before."""
        self._note("")
        try:
            yield
        finally:
            self._note(path)

    def _note(self, path: str) -> None:
        for name in _op_names():
            if name not in self._known:
                self._known.add(name)
                self.registered[name] = path

    def own(self) -> tuple[list[str], list[str]]:
        """Return the ops and the compiled modules of the extension, each sorted."""
        mine = _Ownership(self.imports)
        ops = [
            name
            for name, path in self.registered.items()
            if (mine(path) if path else name.partition("::")[0] not in self._namespaces)
        ]
        return sorted(ops), sorted(name for name, path in self.modules.items() if mine(path))


class _Ownership:
    """Whether a file belongs to the imported packages or their distributions."""

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
            self._distributed = set()
            for distribution in importlib.metadata.distributions():
                files = distribution.files or []
                if any(file.parts[0].partition(".")[0] in self._tops for file in files):
                    code = [file for file in files if file.suffix in (".so", ".py")]
                    self._distributed.update(os.path.realpath(str(distribution.locate_file(one))) for one in code)
        return real in self._distributed


def _imported_module() -> str:
    """The file of the Python module whose import is under way, the innermost one; "" if there is none.

    A function that defines ops may be in another package than the module that calls it.
    """
    of_torch = f"{Path(torch.__file__).parent}{os.sep}"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name == "<module>" and not file.startswith(of_torch) and Path(file).is_file():
            return file
        frame = frame.f_back
    return ""


def _op_names() -> list[str]:
    return torch._C._dispatch_get_all_op_names()  # type: ignore[no-any-return]


def ops(recorder: RegistrationRecorder, public: Sequence[str]) -> list[str]:
    """Return what needs a case: dispatcher ops, functions of compiled modules, callables of PUBLIC modules; sorted."""
    found, modules = recorder.own()
    for name in modules:
        found += _functions(name, sys.modules.get(name), every=True)
    for name in public:
        try:
            found += _functions(name, importlib.import_module(name), every=False)
        except ImportError:
            found.append(f"{name}.*")  # no case has this name, so the check "ops" fails
    return sorted(set(found))


def _without_tensors(function: Any) -> bool:  # noqa: ANN401
    """Whether a compiled function takes and returns numbers and texts only, as its docstring says; it is no op."""
    first = (getattr(function, "__doc__", None) or "").strip()
    return bool(re.fullmatch(f"{PLAIN_CALL} -> {PLAIN_TYPES}", first))


def _functions(name: str, module: Any, *, every: bool) -> list[str]:  # noqa: ANN401
    """Return public functions without classes: all of a compiled module (`every`), else those defined in the module."""
    listed = getattr(module, "__all__", None)
    names = [one for one in (listed or vars(module) if module else ()) if listed or not one.startswith("_")]
    found = []
    for one in names:
        value = getattr(module, one, None)
        if not callable(value) or isinstance(value, type):
            continue
        if every and _without_tensors(value):
            continue
        home = getattr(value, "__module__", None) or name
        if every or listed or home == name or home.startswith(f"{name}."):
            found.append(f"{name}.{one}")
    return found
