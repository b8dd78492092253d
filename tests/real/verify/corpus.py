"""Small real wheels: sound ones, and ones with one planted fault each. gcc compiles their libraries."""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from builder.check import Check
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
