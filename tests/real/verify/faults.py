"""The planted faults, by name."""

from __future__ import annotations

from dataclasses import replace

from builder.check import Check
from tests.real.verify.corpus import LINUX, PTX, SASS, TORCH, Fault, Lib, Wheel, op, with_lib, with_op

_OWN = "int ops_forward();"


def _changed(members: dict[str, bytes]) -> None:
    members["ops/__init__.py"] = b"import os\n"


def _added(members: dict[str, bytes]) -> None:
    members["ops/extra.py"] = b""


def _lost(members: dict[str, bytes]) -> None:
    del members["ops/__init__.py"]


LINKAGE = {
    "CUDA sources left out": Fault(
        Check.LINKAGE,
        "the wheel contains no GPU code: the build left out the CUDA sources",
        with_lib(Lib(op(more=_OWN, call="ops_forward();"), gpu=None), version="1.0"),
    ),
    "a source left out": Fault(
        Check.LINKAGE, "undefined symbol ops_forward: no library", with_op(_OWN, "ops_forward();")
    ),
    "built against an older torch": Fault(
        Check.LINKAGE,
        "at::removed(): the library needs a C++ symbol that torch 2.11.0 does not have",
        with_op(torch="removed"),
    ),
    "built against a newer torch": Fault(
        Check.LINKAGE,
        "at::added(): the library needs a C++ symbol that torch 2.11.0 does not have",
        with_op(torch="added"),
    ),
    "old std::string": Fault(
        Check.LINKAGE,
        "different C++ ABI of std::string",
        with_lib(
            Lib(
                "namespace std { struct string {}; }\nnamespace c10 { int print(const std::string&); }\n"
                "int call(const std::string& s) { return c10::print(s); }\n" + op()
            )
        ),
    ),
    "runtime of CUDA 12 for torch of CUDA 13": Fault(
        Check.LINKAGE,
        "needs libcudart.so.12, the runtime of CUDA 12",
        with_lib(Lib(links=(*TORCH, "libcudart.so.12")), version="1.0"),
        ("--torch", "2.11", "--cuda", "13.0"),
    ),
    "libtorch_cuda not linked": Fault(
        Check.LINKAGE,
        "but this library is not linked against libtorch_cuda.so",
        with_lib(
            Lib(
                "namespace at { namespace cuda { int blas(); } }\nint call() { return at::cuda::blas(); }\n" + op(),
                links=("libtorch_cpu.so", "libc10.so", "libcudart.so.13"),
            )
        ),
    ),
    "CUDA runtime not linked": Fault(
        Check.LINKAGE,
        "no linked library defines this function of libcublas",
        with_lib(
            Lib(
                'extern "C" int cublasCreate_v2(); extern "C" int cublasSetStream();\n'
                "int call() { return cublasSetStream(); }\n"
                "namespace at { int foo(); }\nint use() { return at::foo(); }\n",
                links=("libtorch_cpu.so", "libc10.so"),
                gpu=None,
            ),
            version="1.0",
        ),
    ),
    "driver not linked": Fault(
        Check.LINKAGE,
        "undefined symbol cuInit: no linked library defines this function of the driver",
        with_op("int cuInit(int);", "cuInit(0);"),
    ),
    "a shim that no torch has": Fault(
        Check.LINKAGE,
        "no torch release in buildfarm's table shims.yaml has this function",
        with_op("int aoti_torch_made_up_name();", "aoti_torch_made_up_name();"),
    ),
}

#: A plug-in that needs a library of the system, and the library that every user loads.
_PLUGIN = {**Wheel().libs, "ops/libops_png.so": Lib("int x;", links=("libpng16.so.16",), gpu=None)}


def _one_for_each(*torches: str) -> dict[str, Lib | bytes]:
    """A library for each of these made-up torch releases."""
    calls = {"2.10": "removed", "2.11": "foo", "2.12": "added"}
    return {f"ops/torch-{torch}/lib/libops.so": Lib(op(calls[torch])) for torch in torches}


WINDOW = {
    "no build for one of the torch releases": Fault(
        Check.WINDOW,
        "METADATA allows torch 2.11, but the wheel links with torch 2.10 and 2.12 only",
        Wheel(libs=_one_for_each("2.10", "2.12"), requires=("torch>=2.10,<2.13",), version="1.0"),
    ),
    "a torch that METADATA excludes": Fault(
        Check.WINDOW,
        "METADATA or the version excludes torch 2.10, which has every symbol",
        Wheel(),
        ("--torch", "2.10"),
    ),
    "METADATA allows an older torch": Fault(
        Check.WINDOW,
        "METADATA allows torch 2.10 and 2.11, but the wheel links with torch 2.12 only",
        with_op(torch="added", requires=("torch>=2.10,<2.13",)),
    ),
    "METADATA allows a newer torch": Fault(
        Check.WINDOW,
        "METADATA allows torch 2.11 and 2.12, but the wheel links with torch 2.10 only",
        with_op(torch="removed", requires=("torch>=2.10,<2.13",)),
    ),
    "METADATA allows every torch": Fault(
        Check.WINDOW, "but the wheel links with torch 2.12 only", with_op(torch="added", requires=("torch",))
    ),
    "stable ABI, METADATA too wide": Fault(
        Check.WINDOW,
        "require torch>=2.10",
        with_lib(
            Lib(
                'extern "C" int torch_list_size(); extern "C" int call() { return torch_list_size(); }\n',
                links=("libtorch.so", "libtorch_cpu.so"),
                gpu=None,
            ),
            version="1.0",
            requires=("torch>=2.9",),
            tag=f"py3-none-{LINUX}",
        ),
    ),
}

TAGS = {
    "glibc newer than the tag": Fault(
        Check.TAGS,
        "GLIBC_2.34, newer than manylinux_2_17_x86_64 guarantees",
        with_op("int pthread_create(void*, void*, void*, void*);", "pthread_create(0, 0, 0, 0);"),
    ),
    "file renamed": Fault(
        Check.TAGS, "but WHEEL has cp312-cp312-manylinux_2_17_x86_64", Wheel(file_tag=f"cp313-cp313-{LINUX}")
    ),
    "platform any with a library": Fault(Check.TAGS, "its platform cannot be any", Wheel(tag="cp312-cp312-any")),
    "musllinux": Fault(Check.TAGS, "no wheels for musl", Wheel(tag="cp312-cp312-musllinux_1_2_x86_64")),
    "tag linux": Fault(
        Check.TAGS, "pip installs the tag linux_x86_64 on any Linux", Wheel(tag="cp312-cp312-linux_x86_64")
    ),
    "wrong processor": Fault(Check.TAGS, "does not run on aarch64", Wheel(tag="cp312-cp312-manylinux_2_17_aarch64")),
    "a library that no package has": Fault(
        Check.TAGS,
        "needs libpng16.so.16, which neither torch nor manylinux_2_17_x86_64 provides",
        with_lib(Lib(links=(*TORCH, "libcudart.so.13", "libpng16.so.16"))),
    ),
}

TAGS |= {
    "a plug-in that is always imported": Fault(
        Check.TAGS,
        "ops/libops_png.so needs libpng16.so.16, which neither torch",
        Wheel(libs=_PLUGIN, init='import ctypes\nctypes.CDLL("libops_png.so")\n'),
    ),
    "every library needs one that no package has": Fault(
        Check.TAGS,
        "needs libpng16.so.16, which neither torch",
        Wheel(
            libs={
                name: Lib(links=(*TORCH, "libcudart.so.13", "libpng16.so.16"))
                for name in ("ops/_C.cpython-312-x86_64-linux-gnu.so", "ops/_D.so")
            }
        ),
    ),
}

ABI3 = {
    "module for one Python under abi3": Fault(
        Check.MODULES,
        "only Python 3.12 finds ops/_C.cpython-312-x86_64-linux-gnu.so, but the tag",
        replace(Wheel(), tag=f"cp310-abi3-{LINUX}", requires_python=">=3.10"),
    ),
    "private function under abi3": Fault(
        Check.ABI3,
        "_PyObject_GetState, which Python's stable ABI does not have",
        with_op("void _PyObject_GetState();", "_PyObject_GetState();", tag=f"cp312-abi3-{LINUX}"),
    ),
    "function newer than the abi3 tag": Fault(
        Check.ABI3,
        "PyType_GetModuleName (3.13), which Python 3.12",
        with_op("void PyType_GetModuleName();", "PyType_GetModuleName();", tag=f"cp312-abi3-{LINUX}"),
    ),
}

METADATA = {
    "version differs from the file name": Fault(
        Check.METADATA, "the version is 1.0+cu130.fixed in the file name", Wheel(file_version="1.0+cu130.fixed")
    ),
    "name differs from the file name": Fault(
        Check.METADATA, "the project is ops in the file name and spo in METADATA", Wheel(name="spo")
    ),
    "torch not required": Fault(Check.METADATA, "METADATA does not require torch", Wheel(requires=())),
    "requirement unreadable": Fault(
        Check.METADATA, "is not a valid requirement", Wheel(requires=("torch==2.11.*", "numpy>>1"))
    ),
    "no Python left": Fault(Check.METADATA, "METADATA requires Python <3.12", Wheel(requires_python="<3.12")),
    "version names CUDA 12, library needs CUDA 13": Fault(
        Check.METADATA, "the libraries need the runtime of CUDA 13", Wheel(version="1.0+cu128")
    ),
    "version names torch 2.9, METADATA torch 2.11": Fault(
        Check.METADATA, "the version 1.0+cu130torch2.9 names torch 2.9", Wheel(version="1.0+cu130torch2.9")
    ),
}

CONTENTS = {
    "a file changed after the build": Fault(
        Check.RECORD, "ops/__init__.py differs from its hash", Wheel(after=_changed)
    ),
    "a file added after the build": Fault(Check.RECORD, "RECORD does not list ops/extra.py", Wheel(after=_added)),
    "a file lost": Fault(Check.RECORD, "the wheel lacks ops/__init__.py", Wheel(after=_lost)),
    "no library": Fault(Check.PAYLOAD, "contains no library", Wheel(libs={})),
    "no GPU code": Fault(Check.PAYLOAD, "no GPU code in _C", with_lib(Lib(gpu=None))),
    "libtorch_cpu inside": Fault(
        Check.GRAFTED,
        "contains ops.libs/libtorch_cpu.so",
        Wheel(libs={**Wheel().libs, "ops.libs/libtorch_cpu.so": Lib("int x;", links=(), gpu=None)}),
    ),
    "the driver inside": Fault(
        Check.GRAFTED,
        "contains ops.libs/libcuda-1a2b3c4d.so.1",
        Wheel(libs={**Wheel().libs, "ops.libs/libcuda-1a2b3c4d.so.1": Lib("int x;", links=(), gpu=None)}),
    ),
    "torch's CUDA runtime inside": Fault(
        Check.GRAFTED,
        "contains ops/libcudart.so.13",
        Wheel(libs={**Wheel().libs, "ops/libcudart.so.13": Lib("int x;", links=(), gpu=None)}),
    ),
}

LOADER = {
    "executable stack": Fault(Check.LOADER, "needs an executable stack", with_lib(Lib(flags=("-Wl,-z,execstack",)))),
    "text relocations": Fault(
        Check.LOADER,
        "has text relocations",
        with_lib(Lib('__asm__(".text\\n.quad PyInit__C\\n");\n' + op(), flags=("-Wl,-z,notext",))),
    ),
    "RPATH of the current folder": Fault(
        Check.LOADER, "searches the current folder for libraries (RPATH lib)", with_lib(Lib(flags=("-Wl,-rpath,lib",)))
    ),
    "RPATH to /tmp": Fault(
        Check.LOADER, "that every user may write to (RPATH /tmp/build)", with_lib(Lib(flags=("-Wl,-rpath,/tmp/build",)))
    ),
    "a library that no search path leads to": Fault(
        Check.LOADER,
        "no search path (RUNPATH) leads to ops.libs/libpng16.so.16",
        Wheel(
            libs={
                "ops/_C.so": Lib(links=(*TORCH, "libcudart.so.13", "libpng16.so.16")),
                "ops.libs/libpng16.so.16": Lib('extern "C" int png_read() { return 1; }', links=(), gpu=None),
            }
        ),
    ),
    "two CUDA runtimes": Fault(
        Check.LOADER,
        "need the runtimes of CUDA 12 and 13",
        Wheel(libs={**Wheel().libs, "ops/_D.so": Lib(links=(*TORCH, "libcudart.so.12"))}),
    ),
}

_OLD_PTX = Lib(gpu=((SASS, 80, 0), (PTX, 80, 0)))
GPUS = {
    "no code for a new GPU": Fault(
        Check.GPUS,
        "B200 (10.0) cannot run ops/_C.cpython-312-x86_64-linux-gnu.so, which has sm_80",
        with_lib(Lib(gpu=((SASS, 80, 0),))),
        ("--gpu", "B200"),
    ),
    "no code for an old GPU": Fault(Check.GPUS, "T4 (7.5) cannot run", Wheel(), ("--gpu", "T4")),
    "machine code of exactly one GPU": Fault(
        Check.GPUS, "B200 (10.0) cannot run", with_lib(Lib(gpu=((SASS, 90, 0x100000),))), ("--gpu", "B200")
    ),
    "machine code of the desktop on a Jetson": Fault(
        Check.GPUS, "Jetson AGX Orin (8.7) cannot run", Wheel(), ("--gpu", "Jetson AGX Orin")
    ),
    "driver too old for the CUDA": Fault(
        Check.GPUS, "driver 550 is too old for the CUDA of the wheel", Wheel(), ("--driver", "550")
    ),
    "driver too old for the PTX": Fault(
        Check.GPUS,
        "driver 580 cannot compile the PTX (compute_80)",
        with_lib(replace(_OLD_PTX, isa=(9, 2))),
        ("--gpu", "RTX 5090", "--driver", "580"),
    ),
    "no library with code": Fault(
        Check.GPUS,
        "sm_90 (9.0) cannot run ops/_C.cpython-312-x86_64-linux-gnu.so",
        Wheel(libs={**with_lib(Lib(gpu=((SASS, 80, 0),))).libs, "ops/_D.so": Lib(gpu=((SASS, 80, 0),))}),
        ("--gpu", "sm_90"),
    ),
}

FAULTS = {**LINKAGE, **WINDOW, **TAGS, **ABI3, **METADATA, **CONTENTS, **LOADER, **GPUS}

_STABLE = Lib(
    'extern "C" int torch_list_size(); extern "C" int call() { return torch_list_size(); }\n',
    links=("libtorch.so", "libtorch_cpu.so"),
    gpu=None,
)

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
    "stable ABI": with_lib(
        _STABLE, version="1.0", requires=("torch>=2.10",), tag=f"py3-none-{LINUX}", requires_python=""
    ),
    "stable ABI, mixed-case shim and the C++ library": with_lib(
        Lib(
            'extern "C" int torch_list_size(), aoti_torch_aten_subtract_Tensor();\n'
            "namespace std { void terminate(); }\n"
            'extern "C" int f() { std::terminate(); aoti_torch_aten_subtract_Tensor(); return torch_list_size(); }\n',
            links=("libtorch.so", "libtorch_cpu.so"),
            gpu=None,
        ),
        version="1.0",
        requires=("torch>=2.10",),
        tag=f"py3-none-{LINUX}",
    ),
    "a patch release whose series has an inventory": with_op(torch="added", requires=("torch==2.12.0",)),
    "torch's libgomp": with_lib(
        Lib(
            'extern "C" int GOMP_parallel(); int call() { return GOMP_parallel(); }\n' + op(),
            links=(*TORCH, "libcudart.so.13", "libgomp.so.1"),
        )
    ),
    "bundled libpng": Wheel(
        libs={
            "ops/_C.so": Lib(
                links=(*TORCH, "libcudart.so.13", "libpng16.so.16"), flags=("-Wl,-rpath,$ORIGIN/../ops.libs",)
            ),
            "ops.libs/libpng16.so.16": Lib('extern "C" int png_read() { return 1; }', links=(), gpu=None),
        }
    ),
    "two libraries": Wheel(libs={**Wheel().libs, "ops/_D.so": Lib(op(call="(void)0;"))}),
    "pybind with torch's Python library": with_lib(
        Lib(
            'extern "C" int THPVariable_Wrap(); int call() { return THPVariable_Wrap(); }\n' + op(),
            links=(*TORCH, "libtorch_python.so", "libcudart.so.13"),
        )
    ),
    "driver functions": with_lib(
        Lib(
            'extern "C" int cuInit(int); int call() { return cuInit(0); }\n' + op(),
            links=(*TORCH, "libcudart.so.13", "libcuda.so.1"),
        )
    ),
    "new std::string": with_lib(
        Lib(
            "#include <string>\nnamespace c10 { int print(const std::string&); }\n"
            "int call(const std::string& s) { return c10::print(s); }\n" + op()
        )
    ),
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
    "a library of a required project": Wheel(
        libs={"ops/_C.so": Lib(links=(*TORCH, "libcudart.so.13", "libpng16.so.16"))},
        requires=("torch==2.11.*", "png16-core"),
    ),
    "bundled libgomp under a name of its own": Wheel(
        libs={**Wheel().libs, "ops.libs/libgomp-e985bcbb.so.1.0.0": Lib("int x;", links=(), gpu=None)}
    ),
    "local version of its own": Wheel(version="1.0+build.7"),
    "requires other projects": Wheel(requires=("torch==2.11.*", "numpy>=1.26", "einops; extra == 'all'")),
}
