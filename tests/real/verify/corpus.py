"""Wheels for the tests of `verify`, and three made-up torch releases: libraries to link with, and their symbols."""

import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from builder.check import Check
from builder.matrix.axes import Cuda, Torch
from builder.proofs.inventory import Release, Shelf
from builder.proofs.static.symbol_table import ProvidedLibrary, SymbolTable
from tests.fixtures.compiled import compiled
from tests.unit.loopback import pure_wheel
from tests.unit.proofs.make import fat_binary

LINUX = "manylinux_2_17_x86_64"
#: Calls a function of torch, one of the CUDA runtime, and one of Python.
OP = """
namespace at {{ int {torch}(); }}
extern "C" {{ int cudaMalloc(void**, unsigned long); void* PyModule_Create2(void*, int); {more} }}
extern "C" void* PyInit__C() {{
  void* p; at::{torch}(); cudaMalloc(&p, 1); {call} return PyModule_Create2(nullptr, 1013);
}}
"""
TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so")
SASS, PTX = 2, 1
NATIVE = ((SASS, 80, 0), (SASS, 90, 0), (SASS, 100, 0), (SASS, 120, 0))


def op(torch: str = "foo", more: str = "", call: str = "") -> str:
    """The source of an extension that calls `at::<torch>()`; `more` are C declarations, `call` statements."""
    return OP.format(torch=torch, more=more, call=call)


@dataclass(frozen=True)
class Lib:
    """A library to compile: C++ source, libraries to link, flags of g++, entries of GPU code, version of its PTX."""

    source: str = field(default_factory=op)
    links: tuple[str, ...] = (*TORCH, "libcudart.so.13")
    flags: tuple[str, ...] = ()
    gpu: tuple[tuple[int, int, int], ...] | None = NATIVE
    isa: tuple[int, int] = (9, 0)

    def compiled(self, stubs: Path) -> bytes:
        """The bytes of the library."""
        return _compiled(self, stubs)


@cache
def _compiled(lib: Lib, stubs: Path) -> bytes:
    source = lib.source
    if lib.gpu is not None:
        values = ",".join(map(str, fat_binary(*lib.gpu, isa=lib.isa))) if lib.gpu else ""
        source += f'\n__asm__(".section .nv_fatbin, \\"a\\"\\n{f".byte {values}" if values else ""}\\n.text\\n");\n'
    linked = [str(stubs / name) for name in lib.links]
    return compiled(stubs, source, "-Wl,--no-as-needed", *linked, *lib.flags, name="made.so").read_bytes()


@dataclass(frozen=True)
class Wheel:
    """A wheel to write. The defaults make a sound wheel for torch 2.11, CUDA 13 and Python 3.12."""

    libs: Mapping[str, Lib | bytes] = field(default_factory=lambda: {"ops/_C.cpython-312-x86_64-linux-gnu.so": Lib()})
    version: str = "1.0+cu130"
    tag: str = f"cp312-cp312-{LINUX}"
    requires: tuple[str, ...] = ("torch==2.11.*",)
    requires_python: str = ">=3.12"
    pure: bool = False  # `Root-Is-Purelib`
    init: str = ""  # the text of ops/__init__.py
    after: Callable[[dict[str, bytes]], None] | None = None  # changes the members after RECORD was written

    def write(self, folder: Path, stubs: Path) -> Path:
        """Write the wheel."""
        members = {"ops/__init__.py": self.init.encode()}
        members |= {name: lib if isinstance(lib, bytes) else lib.compiled(stubs) for name, lib in self.libs.items()}
        facts: dict[str, Any] = {"requires": self.requires, "requires_python": self.requires_python, "tag": self.tag}
        path = pure_wheel(folder, "ops", self.version, members, pure=self.pure, **facts)
        if self.after:
            with zipfile.ZipFile(path) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            self.after(members)
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in members.items():
                    archive.writestr(name, content)
        return path


@dataclass(frozen=True)
class Fault:
    """A wheel with one fault, the check that must find it, words of the sentence, and the options to give."""

    check: Check
    says: str
    wheel: Wheel
    options: tuple[str, ...] = ()


def with_lib(lib: Lib, **fields: object) -> Wheel:
    """The sound wheel with a different library."""
    return replace(Wheel(libs={"ops/_C.cpython-312-x86_64-linux-gnu.so": lib}), **fields)  # type: ignore[arg-type]


def with_op(more: str = "", call: str = "", *, torch: str = "foo", **fields: object) -> Wheel:
    """The sound wheel whose library makes one more call."""
    return with_lib(Lib(op(torch, more, call)), **fields)


#: Symbols of libtorch_cpu in every release; those that only some have.
COMMON = [
    "_ZN2at3fooEv",
    "torch_get_const_data_ptr",
    "torch_list_size",
    "aoti_torch_clone",
    "aoti_torch_aten_subtract_Tensor",
]
ONLY = {"2.10": ["_ZN2at7removedEv"], "2.11": [], "2.12": ["_ZN2at5addedEv", "aoti_torch_cpu_rand_like"]}
STRING = "_ZN3c105printERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
CUDA_CALLS = ["cudaMalloc", "cudaFree", "cudaLaunchKernel"]

_STUBS = {
    "libc10.so": [STRING],
    "libtorch_cpu.so": [*COMMON, *ONLY["2.10"], *ONLY["2.12"]],
    "libtorch_cuda.so": ["_ZN2at4cuda4blasEv"],
    "libtorch_python.so": ["THPVariable_Wrap"],
    "libtorch.so": [],
    "libcudart.so.13": CUDA_CALLS,
    "libcudart.so.12": CUDA_CALLS,
    "libcuda.so.1": ["cuInit"],
    "libgomp.so.1": ["GOMP_parallel"],
    "libpng16.so.16": ["png_read"],
}


def stub_libraries(folder: Path) -> Path:
    """Libraries that define these symbols, to link extensions with."""
    for name, symbols in _STUBS.items():
        source = "".join(
            f'int f{at}(void) __asm__("{one}"); int f{at}(void) {{ return {at}; }}\n' for at, one in enumerate(symbols)
        )
        argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run(argv, input=source, text=True, check=True)
    return folder


def inventory(torch: str, cuda: str = "13.0") -> tuple[Release, SymbolTable]:
    """The symbols of one release, as they are read from a wheel: those of libcudart are unknown."""
    release = Torch.parse(torch)
    runtime = f"libcudart.so.{cuda.partition('.')[0]}"
    parts: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
        "libc10.so": ((), frozenset([STRING])),
        "libtorch_cpu.so": (("libc10.so",), frozenset([*COMMON, *ONLY[release.series]])),
        "libtorch_cuda.so": (("libtorch_cpu.so", runtime), frozenset(["_ZN2at4cuda4blasEv"])),
        "libtorch_python.so": (("libtorch.so",), frozenset(["THPVariable_Wrap"])),
        "libtorch.so": (("libtorch_cpu.so", "libtorch_cuda.so"), frozenset()),
        "libtorch_global_deps.so": ((runtime,), frozenset()),
        "libgomp.so.1": ((), frozenset(["GOMP_parallel"])),
    }
    libraries = {name: ProvidedLibrary(needed, defined) for name, (needed, defined) in parts.items()}
    libraries[runtime] = ProvidedLibrary((), frozenset(), read=False)
    return Release(release, Cuda.parse(cuda), "x86_64"), SymbolTable(libraries)


def fill(shelf: Shelf) -> Shelf:
    """Put torch 2.10 to 2.12 for CUDA 13.0, and 2.11 for CUDA 12.8, on a shelf."""
    for torch, cuda in (("2.10.0", "13.0"), ("2.11.0", "13.0"), ("2.12.1", "13.0"), ("2.11.0", "12.8")):
        shelf.add(*inventory(torch, cuda))
    return shelf
