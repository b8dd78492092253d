"""What both executors do in a new environment: check its torch, complete its toolkit, import and date its files."""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

#: Python keeps the bytecode of what it imports. A build cannot write any, and would compile these modules again.
BUILD_MODULES = ("torch.utils.cpp_extension", "setuptools.build_meta", "setuptools.command.bdist_wheel")

#: Imports modules. With a folder as first word, the bytecode of everything imported from there gets the header of
#: PEP 552 with the hash of its source file: such bytecode is valid for every copy of the file, whatever its time is.
IMPORT = """
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import source_hash

folder, *names = sys.argv[1:]
for name in names:
    with suppress(Exception):
        import_module(name)
for module in list(sys.modules.values()) if folder else ():
    spec = getattr(module, "__spec__", None)
    source, bytecode = getattr(spec, "origin", None), getattr(spec, "cached", None)
    if not source or not bytecode or not bytecode.startswith(folder):
        continue
    with suppress(OSError):
        with open(source, "rb") as stream:
            found = source_hash(stream.read())
        with open(bytecode, "r+b") as stream:
            stream.seek(4)
            stream.write((3).to_bytes(4, "little") + found)
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # torch 2.2 under Python 3.12 waits at the exit, forever, for processes that its compiler started
"""

#: Seconds since 1970. The times lie before those of any source: make and ninja see nothing new.
_FIRST, _RANGE = 400_000_000, 1_000_000_000


def fix_header_times(site: Path) -> None:
    """Set the time of each file below a folder `include` of site-packages, by its path: equal files have two times.

    gcc takes two headers with `#pragma once` for one file if they have the same size, the same time (in seconds) and
    the same bytes (libcpp/files.cc). Many of torch's generated headers are equal. The time of an installed file is that
    of its installation, so which of them gcc leaves out would be chance, and the text of equal sources would differ
    between cells.
    """
    for folder, _, names in os.walk(site):
        if "include" not in Path(folder).parts[len(site.parts) :]:
            continue
        for name in names:
            if name.endswith(".py"):  # its bytecode holds its time
                continue
            path = os.path.join(folder, name)  # noqa: PTH118 - there are tens of thousands
            moment = _FIRST + zlib.crc32(os.path.relpath(path, site).encode()) % _RANGE
            with suppress(OSError):  # a file of another user that uv linked here
                os.utime(path, (moment, moment))


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
