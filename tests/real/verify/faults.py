"""The planted faults, by name."""

from dataclasses import replace

from builder.check import Check
from tests.real.verify.corpus import LINUX, PTX, SASS, TORCH, Fault, Lib, Wheel, op, with_lib, with_op

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


def _gpu(*code: tuple[int, int, int]) -> Wheel:
    """The sound wheel with this GPU code."""
    return with_lib(Lib(gpu=code))


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
    Check.PAYLOAD: {
        "no library": ("contains no library", Wheel(libs={})),
    },
    Check.GRAFTED: {
        "libtorch_cpu inside": ("contains ops.libs/libtorch_cpu.so", _with("ops.libs/libtorch_cpu.so")),
    },
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
        "no code for a new GPU": ("B200 (10.0) cannot run ops/_C.cpython-312", _gpu((SASS, 80, 0)), "--gpu", "B200"),
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
