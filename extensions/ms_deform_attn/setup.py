"""Builds _C (schemas and CPU) and, where CUDA is wanted, _C_cuda.

The torch it runs beside decides the binding: the LibTorch stable ABI from 2.10 on
(one wheel for every later torch and every Python from 3.10), the C++ API before
(a wheel for one torch minor version and one Python). Same sources, same kernels.

Environment:
    FORCE_CUDA=1          CUDA or an error; FORCE_CUDA=0: CPU only. Unset: CUDA if a toolkit is found.
    CUDA_HOME             the toolkit, as torch.utils.cpp_extension finds it
    TORCH_CUDA_ARCH_LIST  compute capabilities, e.g. "8.0;9.0+PTX"
    MAX_JOBS              compile jobs at a time

No GPU is asked for: the machine that builds need not have one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    raise SystemExit(
        f"ms_deform_attn: torch could not be imported at build time ({error}).\n"
        "hint: install the torch you want the wheel for, then build with --no-build-isolation "
        "(torch before 2.8 also needs setuptools<82)"
    ) from error

PACKAGE = "ms_deform_attn"
TORCH = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())
STABLE = TORCH >= (2, 10)
# A free-threaded Python, of which setuptools takes 3.15 and newer: one wheel for each Python from 3.15 on (PEP 803).
ABI3T = STABLE and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# The oldest torch the stable binary runs on, in the header's own encoding.
TARGET_VERSION = "0x020a000000000000"
LIMITED_API = "0x030A0000"  # CPython 3.10
LIMITED_TAG = "cp310"
# torch from 2.12 on would build with C++20; the stable headers are content with 17,
# and so are the compilers of older images.
CXX_STANDARD = "-std=c++17"


def wants_cuda() -> bool:
    """Whether to build _C_cuda; an error where it is asked for and cannot be."""
    wish = os.environ.get("FORCE_CUDA", "").strip().lower()
    if wish in {"0", "false", "off", "no"}:
        return False
    home = cpp_extension.CUDA_HOME
    nvcc = Path(home, "bin", "nvcc") if home else None
    found = nvcc is not None and nvcc.exists()
    if not wish:
        return found and torch.version.cuda is not None
    if not found:
        where = f"there is no nvcc in {nvcc.parent}" if nvcc else "no CUDA toolkit was found"
        raise SystemExit(
            f"ms_deform_attn: FORCE_CUDA={wish} but {where}.\n"
            "hint: set CUDA_HOME to a toolkit of the major version of torch's CUDA "
            f"({torch.version.cuda}), or FORCE_CUDA=0 for a CPU-only wheel"
        )
    if torch.version.cuda is None:
        raise SystemExit(
            f"ms_deform_attn: FORCE_CUDA={wish} but this torch ({torch.__version__}) is a CPU build.\n"
            "hint: build beside a CUDA build of torch; it needs no GPU"
        )
    return True


def toolkit_version() -> str:
    """The toolkit's version as nvcc tells it, e.g. "13.0"."""
    said = subprocess.run(
        [os.path.join(cpp_extension.CUDA_HOME, "bin", "nvcc"), "--version"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return re.search(r"release (\d+\.\d+)", said).group(1)


def default_archs(cuda: str) -> str:
    """The archs to build for when TORCH_CUDA_ARCH_LIST is unset: what this CUDA knows.

    torch would ask the GPUs of the build machine, and fails where there is none.
    """
    version = tuple(int(part) for part in cuda.split("."))
    archs = ["8.0", "8.6"]
    archs = (["7.5"] if version >= (13, 0) else ["7.0", "7.5"]) + archs
    if version >= (11, 8):
        archs.append("9.0")
    if version >= (12, 8):
        archs += ["10.0", "12.0"]
    return ";".join(archs) + "+PTX"


CUDA = wants_cuda()
CUDA_VERSION = toolkit_version() if CUDA else ""
if CUDA and not os.environ.get("TORCH_CUDA_ARCH_LIST"):
    os.environ["TORCH_CUDA_ARCH_LIST"] = default_archs(CUDA_VERSION)


def extension(name: str, sources: list[str], *, cuda: bool) -> cpp_extension.CppExtension:
    """One shared library of the package."""
    macros = ["-DMSDA_STABLE", f"-DTORCH_TARGET_VERSION={TARGET_VERSION}"] if STABLE else []
    if STABLE and cuda:
        macros.append("-DUSE_CUDA")  # declares the CUDA shims
    if ABI3T:
        macros.append("-DMSDA_ABI3T")
    # Hidden: the symbols of two extensions in one process must not meet. -g0:
    # Python's own flags often carry a -g, which makes the library five times as big.
    cxx = ["-O3", CXX_STANDARD, "-fvisibility=hidden", "-g0"]
    cxx += ["-Wall", "-Wextra", "-Wno-unused-parameter"]  # torch's headers have unused ones
    # torch's checks put __FILE__ into their messages: not the build machine's folders.
    cxx.append(f"-ffile-prefix-map={Path.cwd()}/=")
    cxx.append(f"-ffile-prefix-map={Path(torch.__file__).parent}/=torch/")
    nvcc = ["-O3", CXX_STANDARD, "-cudart=shared", "-Xcompiler", "-fvisibility=hidden"]
    make = cpp_extension.CUDAExtension if cuda else cpp_extension.CppExtension
    built = make(
        name=f"{PACKAGE}.{name}",
        sources=sources,
        extra_compile_args={"cxx": cxx + macros, "nvcc": nvcc},
        extra_link_args=["-Wl,--version-script=csrc/exports.map"],
        py_limited_api=STABLE,
    )
    # torch's own list is wider than what is used, and every entry becomes a
    # library the loader insists on. No torch_python: nothing here is bound to it.
    if STABLE:
        built.libraries = ["torch_cpu"]
    else:
        built.libraries = ["c10", "torch_cpu"]
    if cuda:
        built.libraries += ["torch_cuda", "cudart"] if STABLE else ["c10_cuda", "cudart"]
    built.depends = [str(path) for path in Path("csrc").rglob("*.*")]
    return built


class build_py_with_facts(build_py):
    """Adds _build.py: what this build is, known before any library is loaded."""

    def run(self) -> None:
        super().run()
        folder = Path("." if getattr(self, "editable_mode", False) else self.build_lib, PACKAGE)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "_build.py").write_text(
            '"""Written by setup.py: what this build was made with."""\n\n'
            f"STABLE = {STABLE}\n"
            f'TORCH = "{TORCH[0]}.{TORCH[1]}"\n'
            f'CUDA = "{CUDA_VERSION}"\n'
        )


extensions = [extension("_C", ["csrc/module.cpp", "csrc/cpu_ops.cpp", "csrc/cpu/kernels.cpp"], cuda=False)]
if CUDA:
    extensions.append(
        extension(
            "_C_cuda",
            ["csrc/module_cuda.cpp", "csrc/cuda_ops.cpp", "csrc/cuda/forward.cu", "csrc/cuda/backward.cu"],
            cuda=True,
        )
    )

setup(
    ext_modules=extensions,
    cmdclass={"build_ext": cpp_extension.BuildExtension, "build_py": build_py_with_facts},
    options={"bdist_wheel": {"py_limited_api": LIMITED_TAG}} if STABLE else {},
    install_requires=["torch>=2.10"] if STABLE else [f"torch=={TORCH[0]}.{TORCH[1]}.*"],
)
