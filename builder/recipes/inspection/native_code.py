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
_CPP = (".cpp", ".cc", ".cxx", ".c", _CYTHON)
#: Ends of the names of the files that are read.
_NATIVE = (".cu", *_CPP, ".h", ".hpp", ".cuh", ".inl", ".cmake", "CMakeLists.txt")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_LIBRARY = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_EXPAND|_FRAGMENT|_IMPL)?(?:_EXPAND)?\s*\(\s*([A-Za-z_]\w*)")
#: Ops that are registered without TORCH_LIBRARY: `torch::RegisterOperators().op("name_space::name", …)`.
_REGISTERED = re.compile(r"\.op\(\s*\"([A-Za-z_]\w*)::")
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

    #: cuda_files, cpp_files: sources of the extension itself, relative to the tree.
    cuda_files: list[str] = field(default_factory=list)
    cpp_files: list[str] = field(default_factory=list)
    #: CUDA files in folders such as third_party.
    foreign_cuda_files: list[str] = field(default_factory=list)
    #: Every header that is included.
    includes: set[str] = field(default_factory=set)
    #: Namespaces of TORCH_LIBRARY.
    namespaces: set[str] = field(default_factory=set)
    #: Files that define a Python module.
    python_modules: list[str] = field(default_factory=list)
    #: Whether CMake files set GPU architectures.
    cmake_architectures: bool = False
    #: Whether CMake files pass -march=native or the like to a compiler.
    native_cpu: bool = False
    #: Whether there is a CMakeLists.txt.
    cmake: bool = False

    @property
    def cython_files(self) -> list[str]:
        """The Cython files without the C or C++ file that Cython makes of each."""
        stems = [name.removesuffix(_CYTHON) for name in self.cpp_files if name.endswith(_CYTHON)]
        made = {name.rpartition(".")[0] for name in self.cpp_files if not name.endswith(_CYTHON)}
        return [stem + _CYTHON for stem in stems if stem not in made]

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
        name = Path(os.path.relpath(path, tree)).as_posix()
        if path.suffix == ".cu":
            (facts.foreign_cuda_files if foreign else facts.cuda_files).append(name)
        elif path.suffix in _CPP and not foreign:
            facts.cpp_files.append(name)
        if foreign:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            facts.cmake |= path.name == "CMakeLists.txt"
            text = _CMAKE_COMMENT.sub("", text)
            facts.native_cpu |= bool(NATIVE_CPU.search(text))
            facts.cmake_architectures |= bool(_CMAKE_ARCHS.search(text))
            continue
        facts.includes.update(_INCLUDE.findall(text))
        facts.namespaces.update(_LIBRARY.findall(text))
        if "RegisterOperators" in text:
            facts.namespaces.update(_REGISTERED.findall(text))
        if _PYTHON_MODULE.search(text):
            facts.python_modules.append(name)
    for names in (facts.cuda_files, facts.cpp_files, facts.foreign_cuda_files, facts.python_modules):
        names.sort()
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
