"""The libraries an extension meets in a cell: what each defines and needs, and C++ names made readable."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from auditwheel.lddtree import load_ld_paths
from auditwheel.libc import Libc

from builder.errors import MissingToolError
from builder.wheels.elf import Elf, read_elf


@dataclass(frozen=True)
class Provider:
    """A library that is there: its file name (which is its soname here), DT_NEEDED, and what it defines."""

    name: str
    needed: tuple[str, ...]
    defined: frozenset[str]


@dataclass(frozen=True)
class SymbolTable:
    """Every library that torch and the NVIDIA packages of one environment provide.

    Attributes:
        providers: by file name, e.g. `libtorch_cpu.so`, `libcudart.so.13`.
        cxx11: torch uses the C++11 ABI of std::string (`_GLIBCXX_USE_CXX11_ABI=1`).

    """

    providers: dict[str, Provider]
    cxx11: bool = True


def collect_symbols(site_packages: Path) -> SymbolTable:
    """Read the dynamic symbols of torch and the NVIDIA packages installed in an environment; loads nothing.

    About 0.5 s for torch 2.11 with CUDA 13.0 (59 libraries, 117,000 symbols), so nothing is cached. Raises
    MissingToolError when torch is not there.
    """
    lib = site_packages / "torch" / "lib"
    if not (lib / "libtorch_cpu.so").is_file():
        raise MissingToolError("torch is not installed in this environment", where=str(site_packages))
    files = [*lib.glob("*.so*"), *site_packages.glob("nvidia/**/lib/*.so*")]
    providers = {file.name: _provider(file.name, elf) for file in sorted(files) if (elf := read_elf(file))}
    return SymbolTable(providers, _uses_cxx11(providers["libc10.so"].defined))


def _provider(name: str, elf: Elf) -> Provider:
    return Provider(name, elf.needed, frozenset(elf.defined))


def _uses_cxx11(defined: Iterable[str]) -> bool:
    # A libc10 of the old ABI names no new string in its own functions, the new one dozens (2.2: 0, 2.11: 40).
    return any("NSt7__cxx1112basic_string" in name for name in defined if name.startswith(("_ZN3c10", "_ZNK3c10")))


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
            return _provider(name, elf)
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
