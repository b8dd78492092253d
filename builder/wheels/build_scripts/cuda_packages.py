"""Facts about torch and the CUDA toolkit from the package index, for both executors."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def stated(version: str) -> tuple[str, str]:
    """The release and the CUDA that torch/version.py states, such as 2.11.0 and 13.0; empty what it does not state."""
    torch = re.search(r"^__version__ = '(\d+\.\d+\.\d+)", version, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*= '(\d+\.\d+)'", version, re.MULTILINE)
    return torch[1] if torch else "", cuda[1] if cuda else ""


def torch_cuda(site_packages: Path) -> str:
    """The CUDA version the installed torch was built for (`13.0`), read from its files; empty for a CPU build."""
    return stated((site_packages / "torch" / "version.py").read_text(encoding="utf-8"))[1]


def torch_mismatch(site_packages: Path, cuda: str) -> str:
    """Why the installed torch cannot serve a build for this CUDA version, or empty."""
    if (found := torch_cuda(site_packages)) == cuda:
        return ""
    return f"the index returned a torch for {f'CUDA {found}' if found else 'CPU only'} instead of CUDA {cuda}"


#: CUDA_ERROR_STUB_LIBRARY of cuda.h.
_STUB_LIBRARY = 34
#: A function of the driver in cuda.h, and its newer name: `#define cuMemAlloc cuMemAlloc_v2`.
_DRIVER_FUNCTION = re.compile(
    r"^\s*CUresult\s+CUDAAPI\s+(cu\w+)\s*\(|^\s*#\s*define\s+cu\w+\s+(?:__CUDA_API_\w+\()?(cu\w+)", re.MULTILINE
)


def link_toolkit(home: Path, cc: str) -> None:
    """Complete the toolkit in `home`, the folder `nvidia/cu13` of an environment; `cc` is a C compiler.

    torch's cpp_extension looks for `lib64`, linkers look for `libX.so`, and nvlink opens `nvvm/lib64/libnvvm.so` for
    code with `-dlto`, as of `CUDAExtension(dlink=True)` (seen with 13.0 to 13.5). The wheels ship `lib` and versioned
    files only. They have no stub of the driver either, which a build without a GPU links: `lib/stubs/libcuda.so` gets
    the functions of cuda.h, and each returns an error.
    """
    folders = [folder for folder in home.parent.glob("*/lib") if folder.is_dir()]
    links = {home / "lib64": "lib"}
    for library in (path for folder in folders for path in folder.glob("lib*.so.*")):
        links[library.with_name(f"{library.name.partition('.so.')[0]}.so")] = library.name
    for library in home.glob("lib/libnvvm.so.*"):
        links[home / "nvvm" / "lib64" / "libnvvm.so"] = f"../../lib/{library.name}"
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # made by an earlier build, or by one that runs at the same time
            link.symlink_to(target)
    stub, header = home / "lib" / "stubs" / "libcuda.so", home / "include" / "cuda.h"
    if not stub.exists():
        text = header.read_text(encoding="utf-8", errors="replace") if header.is_file() else ""
        names = sorted({name for pair in _DRIVER_FUNCTION.findall(text) for name in pair if name})
        with suppress(OSError, subprocess.CalledProcessError):  # only a source that links -lcuda needs it
            stub.parent.mkdir(exist_ok=True)
            compile_stub(stub, "libcuda.so.1", names, cc)


def compile_stub(stub: Path, soname: str, names: Iterable[str], cc: str) -> None:
    """Compile a library with functions of these names, which return an error; raises OSError or CalledProcessError."""
    code = "".join(f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in names)
    made = stub.with_name(f".{stub.name}.{os.getpid()}")
    argv = [cc, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(made), "-x", "c", "-"]
    subprocess.run(argv, input=code, text=True, check=True, capture_output=True)
    made.rename(stub)
