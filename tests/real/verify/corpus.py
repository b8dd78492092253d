"""Wheels for the tests of `verify`, sound and with each planted fault, and three made-up torch releases."""

import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from builder.matrix.axes import Cuda, Torch
from builder.proof import Check
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


_RUNTIME = (*TORCH, "libcudart.so.13")
_CPU = ("libtorch_cpu.so", "libc10.so")
_OLD_STRING = """
namespace std { struct string {}; }
namespace c10 { int print(const std::string&); }
int call(const std::string& s) { return c10::print(s); }
"""
_BLAS = "namespace at { namespace cuda { int blas(); } }\nint call() { return at::cuda::blas(); }\n"
#: A library of the stable ABI.
_STABLE = Lib(
    'extern "C" int torch_list_size(); extern "C" int call() { return torch_list_size(); }\n',
    links=("libtorch.so", "libtorch_cpu.so"),
    gpu=None,
)
_STABLE_WHEEL = with_lib(_STABLE, version="1.0", requires=("torch>=2.10",), tag=f"py3-none-{LINUX}")
_NEEDS_PNG, _PNG = (
    Lib(links=(*_RUNTIME, "libpng16.so.16")),
    Lib('extern "C" int png_read() { return 1; }', links=(), gpu=None),
)
#: A plug-in that needs a library of the system, and the library that every user loads.
_PLUGIN = {**Wheel().libs, "ops/libops_png.so": Lib("int x;", links=("libpng16.so.16",), gpu=None)}


def _changed(members: dict[str, bytes]) -> None:
    members["ops/__init__.py"] = b"import os\n"


def _lost(members: dict[str, bytes]) -> None:
    del members["ops/__init__.py"]


def _one_for_each(*torches: str) -> dict[str, Lib | bytes]:
    """A library for each of these made-up torch releases."""
    calls = {"2.10": "removed", "2.11": "foo", "2.12": "added"}
    return {f"ops/torch-{torch}/lib/libops.so": Lib(op(calls[torch])) for torch in torches}


def _with(path: str, library: Lib | None = None) -> Wheel:
    """The sound wheel with one more library."""
    return Wheel(libs={**Wheel().libs, path: library or Lib("int x;", links=(), gpu=None)})


#: By check: what the sentence says, the wheel, and options of `verify`.
_TABLE: dict[Check, dict[str, tuple[str, Wheel, *tuple[str, ...]]]] = {
    Check.LINKAGE: {
        "CUDA sources left out": (
            "the wheel contains no GPU code: the build left out the CUDA sources",
            with_lib(Lib(op(more="int ops_forward();", call="ops_forward();"), gpu=None), version="1.0"),
        ),
        "a source left out": ("symbol ops_forward: no library", with_op("int ops_forward();", "ops_forward();")),
        "built against an older torch": ("at::removed(): the library needs a C++ symbol", with_op(torch="removed")),
        "old std::string": ("different C++ ABI of std::string", with_lib(Lib(_OLD_STRING + op()))),
        "runtime of CUDA 12 for torch of CUDA 13": (
            "needs libcudart.so.12, the runtime of CUDA 12",
            with_lib(Lib(links=(*TORCH, "libcudart.so.12")), version="1.0"),
            *("--torch", "2.11", "--cuda", "13.0"),
        ),
        "libtorch_cuda not linked": (
            "but this library is not linked against libtorch_cuda.so",
            with_lib(Lib(_BLAS + op(), links=(*_CPU, "libcudart.so.13"))),
        ),
    },
    Check.WINDOW: {
        "no build for one of the torch releases": (
            "METADATA allows torch 2.11, but the wheel links with torch 2.10 and 2.12 only",
            Wheel(libs=_one_for_each("2.10", "2.12"), requires=("torch>=2.10,<2.13",), version="1.0"),
        ),
        "a torch that METADATA excludes": (
            "METADATA or the version excludes torch 2.10, which has every symbol",
            Wheel(),
            *("--torch", "2.10"),
        ),
        "METADATA allows an older torch": (
            "METADATA allows torch 2.10 and 2.11, but the wheel links with torch 2.12 only",
            with_op(torch="added", requires=("torch>=2.10,<2.13",)),
        ),
        "METADATA allows a newer torch": (
            "METADATA allows torch 2.11 and 2.12, but the wheel links with torch 2.10 only",
            with_op(torch="removed", requires=("torch>=2.10,<2.13",)),
        ),
        "METADATA allows every torch": ("with torch 2.12 only", with_op(torch="added", requires=("torch",))),
        "stable ABI, METADATA too wide": ("require torch>=2.10", replace(_STABLE_WHEEL, requires=("torch>=2.9",))),
    },
    Check.TAGS: {
        "glibc newer than the tag": (
            "GLIBC_2.34, newer than manylinux_2_17_x86_64 guarantees",
            with_op("int pthread_create(void*, void*, void*, void*);", "pthread_create(0, 0, 0, 0);"),
        ),
        "tag linux": ("pip installs the tag linux_x86_64 on any Linux", Wheel(tag="cp312-cp312-linux_x86_64")),
        "a library that no package has": (
            "needs libpng16.so.16, which neither torch nor manylinux_2_17_x86_64 provides",
            with_lib(_NEEDS_PNG),
        ),
        "a plug-in that is always imported": (
            "ops/libops_png.so needs libpng16.so.16, which neither torch",
            Wheel(libs=_PLUGIN, init='import ctypes\nctypes.CDLL("libops_png.so")\n'),
        ),
        "every library needs one that no package has": (
            "ops/_C.cpython-312-x86_64-linux-gnu.so, ops/_D.so need libpng16.so.16, which neither torch",
            Wheel(libs=dict.fromkeys((*Wheel().libs, "ops/_D.so"), _NEEDS_PNG)),
        ),
    },
    Check.MODULES: {
        "module for one Python under abi3": (
            "only Python 3.12 finds ops/_C.cpython-312-x86_64-linux-gnu.so, but the tag",
            replace(Wheel(), tag=f"cp310-abi3-{LINUX}", requires_python=">=3.10"),
        ),
    },
    Check.ABI3: {
        "function newer than the abi3 tag": (
            "PyType_GetModuleName (3.13), which Python 3.12",
            with_op("void PyType_GetModuleName();", "PyType_GetModuleName();", tag=f"cp312-abi3-{LINUX}"),
        ),
    },
    Check.METADATA: {
        "torch not required": ("METADATA does not require torch", Wheel(requires=())),
        "no Python left": ("METADATA requires Python <3.12", Wheel(requires_python="<3.12")),
        "version names CUDA 12, library needs CUDA 13": ("need the runtime of CUDA 13", Wheel(version="1.0+cu128")),
        "version names torch 2.9, METADATA torch 2.11": ("names torch 2.9", Wheel(version="1.0+cu130torch2.9")),
    },
    Check.RECORD: {
        "a file changed after the build": ("ops/__init__.py differs from its hash", Wheel(after=_changed)),
        "a file lost": ("the wheel lacks ops/__init__.py", Wheel(after=_lost)),
    },
    Check.PAYLOAD: {"no library": ("contains no library", Wheel(libs={}))},
    Check.GRAFTED: {"libtorch_cpu inside": ("contains ops.libs/libtorch_cpu.so", _with("ops.libs/libtorch_cpu.so"))},
    Check.LOADER: {
        "executable stack": ("needs an executable stack", with_lib(Lib(flags=("-Wl,-z,execstack",)))),
        "text relocations": (
            "has text relocations",
            with_lib(Lib('__asm__(".text\\n.quad PyInit__C\\n");\n' + op(), flags=("-Wl,-z,notext",))),
        ),
        "RPATH of the current folder": ("the current folder for libraries", with_lib(Lib(flags=("-Wl,-rpath,lib",)))),
        "RPATH to /tmp": ("may write to (RPATH /tmp/build)", with_lib(Lib(flags=("-Wl,-rpath,/tmp/build",)))),
        "a library that no search path leads to": (
            "no search path (RUNPATH) leads to ops.libs/libpng16.so.16",
            Wheel(libs={"ops/_C.so": _NEEDS_PNG, "ops.libs/libpng16.so.16": _PNG}),
        ),
        "two CUDA runtimes": (
            "need the runtimes of CUDA 12 and 13",
            _with("ops/_D.so", Lib(links=(*TORCH, "libcudart.so.12"))),
        ),
    },
    Check.GPUS: {
        "no code for a new GPU": (
            "B200 (10.0) cannot run ops/_C.cpython-312",
            with_lib(Lib(gpu=((SASS, 80, 0),))),
            *("--gpu", "B200"),
        ),
        "driver too old for the CUDA": ("550 is too old for the CUDA of the wheel", Wheel(), "--driver", "550"),
        "driver too old for the PTX": (
            "driver 580 cannot compile the PTX (compute_80)",
            with_lib(Lib(gpu=((SASS, 80, 0), (PTX, 80, 0)), isa=(9, 2))),
            *("--gpu", "RTX 5090", "--driver", "580"),
        ),
    },
}
FAULTS = {
    name: Fault(check, says, wheel, tuple(options))
    for check, rows in _TABLE.items()
    for name, (says, wheel, *options) in rows.items()
}

_SHIMS = """
extern "C" int torch_list_size(), aoti_torch_aten_subtract_Tensor();
namespace std { void terminate(); }
extern "C" int f() { std::terminate(); aoti_torch_aten_subtract_Tensor(); return torch_list_size(); }
"""
_NEW_STRING = """
#include <string>
namespace c10 { int print(const std::string&); }
int call(const std::string& s) { return c10::print(s); }
"""


def _calls(function: str, *more: str, arguments: str = "", declared: str = "") -> Wheel:
    """The sound wheel whose library also calls a C function, and links more libraries."""
    source = f'extern "C" int {function}({declared}); int call() {{ return {function}({arguments}); }}\n'
    return with_lib(Lib(source + op(), links=(*_RUNTIME, *more)))


#: Wheels without a fault: no check may fail.
SOUND = {
    "plain": Wheel(),
    "exact torch": Wheel(requires=("torch==2.11.0",)),
    "torch with a local version": Wheel(requires=("torch==2.11.0+cu130",)),
    "three series": Wheel(requires=("torch>=2.10,<2.13",)),
    "one series, version names it": Wheel(version="1.0+cu130torch2.11", requires=("torch",)),
    "CUDA 12": with_lib(Lib(links=(*TORCH, "libcudart.so.12")), version="1.0+cu128"),
    "CPU only": with_lib(
        Lib("namespace at { int foo(); }\nint call() { return at::foo(); }\n", links=TORCH, gpu=None), version="1.0"
    ),
    "abi3": replace(Wheel(libs={"ops/_C.abi3.so": Lib()}), tag=f"cp310-abi3-{LINUX}", requires_python=">=3.10"),
    "stable ABI": replace(_STABLE_WHEEL, requires_python=""),
    "stable ABI, mixed-case shim and the C++ library": replace(
        with_lib(replace(_STABLE, source=_SHIMS)), version="1.0", requires=("torch>=2.10",), tag=f"py3-none-{LINUX}"
    ),
    "a patch release whose series has an inventory": with_op(torch="added", requires=("torch==2.12.0",)),
    "torch's libgomp": _calls("GOMP_parallel", "libgomp.so.1"),
    "bundled libpng": Wheel(
        libs={
            "ops/_C.so": replace(_NEEDS_PNG, flags=("-Wl,-rpath,$ORIGIN/../ops.libs",)),
            "ops.libs/libpng16.so.16": _PNG,
        }
    ),
    "two libraries": _with("ops/_D.so", Lib(op(call="(void)0;"))),
    "pybind with torch's Python library": _calls("THPVariable_Wrap", "libtorch_python.so"),
    "driver functions": _calls("cuInit", "libcuda.so.1", arguments="0", declared="int"),
    "new std::string": with_lib(Lib(_NEW_STRING + op())),
    "one build for each torch": Wheel(
        libs=_one_for_each("2.10", "2.11", "2.12"), requires=("torch>=2.10,<2.13",), version="1.0"
    ),
    "one build for each CUDA": Wheel(
        libs={"ops/libops_cuda12.so": Lib(links=(*TORCH, "libcudart.so.12")), "ops/libops_cuda13.so": Lib()},
        version="1.0",
    ),
    "a plug-in for a library of the system": Wheel(
        libs=_PLUGIN, init='import ctypes\ndef png():\n    return ctypes.CDLL("libops_png.so")\n'
    ),
    "a library of a required project": Wheel(libs={"ops/_C.so": _NEEDS_PNG}, requires=("torch==2.11.*", "png16-core")),
    "bundled libgomp under a name of its own": _with("ops.libs/libgomp-e985bcbb.so.1.0.0"),
    "local version of its own": Wheel(version="1.0+build.7"),
    "requires other projects": Wheel(requires=("torch==2.11.*", "numpy>=1.26", "einops; extra == 'all'")),
}
