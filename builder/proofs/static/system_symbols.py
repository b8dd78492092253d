"""Symbols that the system, Python and the driver define in every cell, and the names of torch and CUDA."""

import re
from functools import cache
from pathlib import Path

from auditwheel.lddtree import load_ld_paths
from auditwheel.libc import Libc

from builder.proofs.static.symbol_table import ProvidedLibrary
from builder.wheelfile.elf import read_elf

#: Libraries that every C++ extension links, and that every CPython has loaded.
STANDARD = (
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libstdc++.so.6",
    "libgcc_s.so.1",
)
#: Functions of CUDA's libraries; the group is the prefix of the library.
CUDA_CALL = re.compile(
    r"(cuda|cublasLt|cublas|cudnn|cufft|curand|cusolverMg|cusolver|cusparse|nvrtc|nccl|nvtx)[A-Z]\w*|__cuda\w+"
)


@cache
def system_library(name: str) -> ProvidedLibrary | None:
    """A library of this machine's operating system, or None when there is none of that name."""
    for folder in load_ld_paths(Libc.GLIBC)["conf"]:
        file = Path(folder) / name
        if file.is_file() and (elf := read_elf(file)) is not None:
            return ProvidedLibrary(elf.needed, frozenset(elf.defined))
    return None


def is_standard(symbol: str) -> bool:
    """Whether the C or C++ runtime defines a symbol, in any version; read from this machine's libraries."""
    return any((library := system_library(name)) and symbol in library.defined for name in STANDARD)


def is_python(symbol: str) -> bool:
    """Whether the interpreter defines a symbol. Whether an abi3 tag allows it is decided by the abi3 check."""
    return re.match(r"_?Py[A-Z_]", symbol) is not None


def is_torch_cxx(symbol: str) -> bool:
    """Whether a symbol is a mangled C++ name of torch: in the namespace `at`, `c10`, `torch` or `caffe2`."""
    return re.match(r"_Z(?:T[VIST]|GV)?N[rVK]*[RO]?(?:2at|3c10|5torch|6caffe2)", symbol) is not None
