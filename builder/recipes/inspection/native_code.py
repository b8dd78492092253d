"""Facts about the C++, CUDA and CMake files of a source, from their text."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from builder.diagnosis.target_version import source_files
from builder.recipes.host_functions import without_comments

_CYTHON = ".pyx"
_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c", _CYTHON)
#: Ends of the names of the files that are read.
_NATIVE = (*_SOURCES, ".h", ".hpp", ".cuh", ".inl", ".cmake", "CMakeLists.txt")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
#: How ops are registered: `TORCH_LIBRARY(name_space, m)`, `torch::RegisterOperators().op("name_space::name", …)`.
_NAMESPACE = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_\w+)?\s*\(\s*([A-Za-z_]\w*)|\.op\(\s*\"([A-Za-z_]\w*)::")
_PYTHON_MODULE = re.compile(r"\b(?:PYBIND11_MODULE|NB_MODULE|PyMODINIT_FUNC)\b")
_CMAKE_ARCHS = re.compile(r"CUDA_ARCHITECTURES\"?\s+\"?(?:\d{2,3}[af]?|all|native)(?:-\w+)?\b|compute_\d{2,3}")
_CMAKE_COMMENT = re.compile(r"#\[(=*)\[.*?\]\1\]|#[^\n]*", re.DOTALL)
#: An option that chooses the CPU of the machine that compiles.
NATIVE_CPU = re.compile(r"-m(?:arch|tune|cpu)=native\b")
#: Headers of LibTorch's stable ABI and those that include only C or standard C++ (libtorch_stable_abi.md).
_STABLE = ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/")
_PYTHON_API = ("pybind11/", "nanobind/", "torch/extension.h", "torch/python.h", "torch/csrc/utils/pybind.h", "Python.h")
#: Headers that include all of torch, so that their compile needs much memory.
COMPLETE_TORCH = ("torch/extension.h", "torch/torch.h", "torch/all.h", "ATen/ATen.h", "torch/script.h")
#: What torch/extension.h has and torch/types.h may lack: pybind11, and parts of the C++ frontend of torch.
_OF_EXTENSION = re.compile(
    r"\b(?:PYBIND11_|pybind11\b|py::|(?:STABLE_)?TORCH_LIBRARY|torch::(?:nn|optim|data|jit|serialize|autograd|indexing)\b)"
)


@dataclass
class NativeFacts:
    """What the native files of a source are."""

    #: The C++ and CUDA sources of the extension itself, relative to the tree.
    sources: list[str] = field(default_factory=list)
    foreign_cuda_files: int = 0  # how many CUDA files are in folders such as third_party
    includes: set[str] = field(default_factory=set)  # every header that is included
    namespaces: set[str] = field(default_factory=set)  # namespaces of the ops that it registers
    python_module: bool = False  # whether a file defines a Python module
    cmake_architectures: bool = False  # whether CMake files set GPU architectures
    native_cpu: bool = False  # whether CMake files pass -march=native or the like to a compiler
    cmake: bool = False  # whether there is a CMakeLists.txt

    @property
    def cuda_files(self) -> int:
        """How many CUDA files the extension itself has."""
        return sum(name.endswith(".cu") for name in self.sources)

    @property
    def needs_cython(self) -> bool:
        """Whether there is a Cython file without the C or C++ file that Cython makes of it."""
        made = {name.rpartition(".")[0] for name in self.sources if not name.endswith(_CYTHON)}
        return any(name.endswith(_CYTHON) and name.removesuffix(_CYTHON) not in made for name in self.sources)

    @property
    def torch_headers(self) -> list[str]:
        """The headers of torch that are not of its stable ABI."""
        ours = ("ATen/", "c10/", "torch/", "THC/")
        return sorted(name for name in self.includes if name.startswith(ours) and not name.startswith(_STABLE))

    @property
    def stable_headers(self) -> list[str]:
        """The headers of torch's stable ABI."""
        return sorted(name for name in self.includes if name.startswith(_STABLE))

    @property
    def python_headers(self) -> list[str]:
        """The headers that use Python's C API."""
        return sorted(name for name in self.includes if name.startswith(_PYTHON_API))


def read_native_code(tree: Path, also: Sequence[Path] = ()) -> NativeFacts:
    """Return the facts about the native files below a folder, and in the folders `also`, such as `tree / "../csrc"`."""
    facts = NativeFacts()
    for path, foreign in chain.from_iterable(source_files(each, _NATIVE) for each in (tree, *also)):
        if foreign:
            facts.foreign_cuda_files += path.suffix == ".cu"
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            facts.cmake |= path.name == "CMakeLists.txt"
            text = _CMAKE_COMMENT.sub("", text)
            facts.native_cpu |= bool(NATIVE_CPU.search(text))
            facts.cmake_architectures |= bool(_CMAKE_ARCHS.search(text))
            continue
        if path.suffix in _SOURCES:
            facts.sources.append(Path(os.path.relpath(path, tree)).as_posix())
        facts.includes.update(_INCLUDE.findall(text))
        facts.namespaces.update(one or other for one, other in _NAMESPACE.findall(text))
        facts.python_module |= bool(_PYTHON_MODULE.search(text))
    return facts


def has_needless_header(text: str) -> bool:
    """Whether a file includes torch/extension.h, and uses nothing that torch/types.h lacks."""
    return "torch/extension.h" in _INCLUDE.findall(text) and not _OF_EXTENSION.search(without_comments(text))


def too_many_headers(files: Sequence[str]) -> str:
    """What files that include torch/extension.h for nothing should include instead."""
    one = len(files) == 1
    return (
        f"{', '.join(files)} include{'s' * one} <torch/extension.h>, and with it pybind11 and all of torch:"
        f" <torch/types.h> is enough for {'this file' if one else 'these files'} and compiles much faster"
    )


def needless_headers(tree: Path) -> list[str]:
    """The CUDA files below a folder that include torch/extension.h for nothing, relative to it."""
    files = [path for path, foreign in source_files(tree, (".cu",)) if not foreign]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files}
    return sorted(str(path.relative_to(tree)) for path, text in texts.items() if has_needless_header(text))
