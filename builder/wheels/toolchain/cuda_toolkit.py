"""The nvcc and the host compiler of a build, or the reasons why this machine has none that fit."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.errors import Code, MissingToolError
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat

#: Where NVIDIA's installer puts toolkits.
USUAL_HOMES = ("/usr/local/cuda-{cuda}", "/usr/local/cuda")


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit."""

    home: Path | None  # its root folder; None: it is installed from the package index into the build's environment
    version: str  # nvcc's version for a toolkit on disk (`12.4.131`), else the requested minor version (`13.0`)
    requested_cuda: Cuda | None = None  # the requested CUDA, if the toolkit has another minor version; otherwise None


@dataclass(frozen=True)
class HostCompiler:
    """A C and C++ compiler pair that nvcc accepts."""

    cc: str
    cxx: str
    version: str


def find_toolkit(cuda: Cuda, *, minor_mismatch: bool) -> Toolkit:
    """A toolkit for this CUDA: on disk, else from the package index, else with `minor_mismatch` another minor on disk.

    Raises MissingToolError, whose hints name every way to get one.
    """
    on_disk = list(_on_disk(cuda))
    for home, version in on_disk:
        if Cuda.of_toolkit(version) == cuda:
            return Toolkit(home, version)
    first = Compat.load().first_packaged_toolkit
    if cuda >= first:
        return Toolkit(None, str(cuda))
    same_major = [(home, version) for home, version in on_disk if version.split(".")[0] == str(cuda.major)]
    if minor_mismatch and same_major:
        home, version = same_major[0]
        return Toolkit(home, version, requested_cuda=cuda)
    ways = [f"install the CUDA {cuda} toolkit and set CUDA_HOME to its root folder (or put its nvcc on PATH)"]
    for home, version in same_major[:1]:
        ways.append(
            f"pass `--allow-cuda-minor-mismatch` to compile with the CUDA {version} at {home}; the wheel records this"
        )
    if not same_major:
        also = "" if minor_mismatch else " and pass `--allow-cuda-minor-mismatch`"
        ways.append(f"set CUDA_HOME to a CUDA {cuda.major}.x toolkit{also}; the wheel records this")
    ways.append("pass `--executor docker` to compile in a container, whose image has the toolkit")
    ways.append(
        f"build for CUDA {first} or later, whose toolkit is on the package index (`--torch 2.11 --cuda {first}`)"
    )
    raise MissingToolError(f"no CUDA {cuda} toolkit on this machine", Code.TOOLKIT_MISSING, hints=ways)


def _on_disk(cuda: Cuda) -> Iterator[tuple[Path, str]]:
    """Root folder and nvcc version of each toolkit on this machine; CUDA_HOME comes first."""
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    homes += [Path(home.format(cuda=cuda)) for home in USUAL_HOMES]
    if nvcc := shutil.which("nvcc"):
        homes.append(Path(nvcc).resolve().parent.parent)
    seen: set[Path] = set()
    for home in homes:
        if home in seen:
            continue
        seen.add(home)
        if version := nvcc_version(home):
            yield home, version


@cache
def nvcc_version(home: Path) -> str:
    """The version of the nvcc in a toolkit's root folder, `12.4.131`; empty without an nvcc that runs."""
    nvcc = home / "bin" / "nvcc"
    if not nvcc.exists():
        return ""
    try:
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # not a program, or built for another processor
        return ""
    match = re.search(r"V(\d+\.\d+\.\d+)", answer.stdout)
    return match[1] if match else ""


def find_host_compiler(cuda: Cuda, torch: Torch | None = None) -> HostCompiler:
    """A compiler that nvcc and torch's headers accept: CXX, else g++, else the newest accepted g++-N.

    `cuda` is the toolkit's version; its minor version may differ from that of the build. Raises MissingToolError when
    there is none.
    """
    limit: int | None = Compat.load().toolkit(cuda).gcc_max
    oldest, accepted = 0, f"nvcc {cuda} accepts gcc up to {limit}"
    if torch is not None:
        oldest, limit = Compat.load().gcc_range(torch, cuda)
        accepted = f"nvcc {cuda} with torch {torch} accepts gcc {oldest} to {limit}"
    chosen = os.environ.get("CXX")
    candidates = [chosen] if chosen else ["g++", *(f"g++-{n}" for n in range(limit or 20, max(oldest, 7) - 1, -1))]
    refused: list[str] = []
    for cxx in candidates:
        found = _compiler(cxx)
        if found is None:
            continue
        if "clang" in cxx or oldest <= int(found.version.split(".")[0]) <= (limit or sys.maxsize):
            return found
        refused.append(f"{cxx} is {found.version}")
    if refused:
        raise MissingToolError(
            f"{accepted}; {', '.join(refused)}",
            Code.COMPILER_UNSUITABLE,
            hints=[f"`apt-get install g++-{limit}` (or your system's package), or set CC and CXX to an accepted gcc"],
        )
    raise MissingToolError(
        f"no C++ compiler: CXX is {chosen}, which does not run" if chosen else "no C++ compiler on PATH",
        Code.COMPILER_MISSING,
        hints=["`apt-get install g++` (or your system's package), or set CC and CXX"],
    )


@cache
def _compiler(cxx: str) -> HostCompiler | None:
    path = shutil.which(cxx)
    if path is None:
        return None
    answer = subprocess.run([path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout[:1].isdigit():
        return None
    cc = os.environ.get("CC") or cxx.replace("clang++", "clang").replace("g++", "gcc")
    return HostCompiler(shutil.which(cc) or cc, path, answer.stdout.strip())
