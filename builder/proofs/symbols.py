"""What the system, Python and the driver define in every cell, and C++ names made readable."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from auditwheel.lddtree import load_ld_paths
from auditwheel.libc import Libc

from builder.proofs.providers import Provider
from builder.wheels.elf import read_elf

#: What every C++ extension is linked with, and every CPython has loaded already.
STANDARD = (
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libstdc++.so.6",
    "libgcc_s.so.1",
)


@cache
def system_provider(name: str) -> Provider | None:
    """A library of the operating system, read from this machine, or None when it has none of that name."""
    for folder in load_ld_paths(Libc.GLIBC)["conf"]:
        file = Path(folder) / name
        if file.is_file() and (elf := read_elf(file)) is not None:
            return Provider.of(name, elf)
    return None


def is_standard(symbol: str) -> bool:
    """Whether the C or C++ runtime defines it, whatever version: read from this machine's own libraries."""
    return any((provider := system_provider(name)) and symbol in provider.defined for name in STANDARD)


def is_python(symbol: str) -> bool:
    """Whether the interpreter itself defines it; whether an abi3 tag allows it is the abi3 check's matter."""
    return re.match(r"_?Py[A-Z_]", symbol) is not None


def is_torch_cxx(symbol: str) -> bool:
    """Whether it is a mangled C++ name of torch: something in `at`, `c10`, `torch` or `caffe2`."""
    return re.match(r"_Z(?:T[VIST]|GV)?N[rVK]*[RO]?(?:2at|3c10|5torch|6caffe2)", symbol) is not None


def is_driver(library: str) -> bool:
    """Whether a library comes with NVIDIA's driver, and so with no package."""
    return re.match(r"(libcuda|libnvidia-[\w-]+|libnvcuvid|libnvoptix)\.so", library) is not None


@cache
def _demangler() -> tuple[Callable[..., int | None], Callable[..., None]] | None:
    """The C++ runtime's own demangler, and what frees its answer; None where there is no libstdc++."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    demangler = library["__cxa_demangle"]
    demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    demangler.restype = ctypes.c_void_p  # a number, not bytes: the buffer is ours to free
    free = library["free"]
    free.argtypes, free.restype = [ctypes.c_void_p], None
    return demangler, free


def demangle(symbol: str) -> str:
    """A C++ name as a person writes it; any other name, or any without a libstdc++ here, as it is."""
    functions = _demangler()
    if functions is None or not symbol.startswith("_Z"):
        return symbol
    demangler, free = functions
    buffer = demangler(symbol.encode(), None, None, None)
    if not buffer:
        return symbol
    try:
        return ctypes.string_at(buffer).decode()
    finally:
        free(buffer)
