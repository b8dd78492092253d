"""Which nvcc and which host compiler a build gets, and why not another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.errors import MissingToolError
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat

#: From this version on the package index has a whole nvcc; below it only ptxas (measured: nvidia-cuda-nvcc-cu12).
FIRST_PACKAGED = Cuda(13, 0)
#: Where NVIDIA's installer puts a toolkit.
USUAL_HOMES = ("/usr/local/cuda-{cuda}", "/usr/local/cuda")


@dataclass(frozen=True)
class Toolkit:
    """Where nvcc comes from.

    Attributes:
        home: its root, or None when it is installed from the package index into the build's environment.
        version: nvcc's own version for a toolkit on disk (`12.4.131`), the wanted minor otherwise (`13.0`).
        stands_in_for: the CUDA that was asked for, when this is another minor of the same major.

    """

    home: Path | None
    version: str
    stands_in_for: Cuda | None = None


@dataclass(frozen=True)
class HostCompiler:
    """A C and C++ compiler pair that nvcc accepts."""

    cc: str
    cxx: str
    version: str


def find_toolkit(cuda: Cuda, *, stand_in: bool) -> Toolkit:
    """A toolkit for that CUDA: on disk, else from the package index, else (only if asked) another minor on disk.

    Raises MissingToolError with each way out.
    """
    on_disk = list(_on_disk(cuda))
    for home, version in on_disk:
        if Cuda.parse(".".join(version.split(".")[:2])) == cuda:
            return Toolkit(home, version)
    if cuda >= FIRST_PACKAGED:
        return Toolkit(None, str(cuda))
    same_major = [(home, version) for home, version in on_disk if version.split(".")[0] == str(cuda.major)]
    if stand_in and same_major:
        home, version = same_major[0]
        return Toolkit(home, version, stands_in_for=cuda)
    raise MissingToolError(f"no CUDA {cuda} toolkit on this machine", hints=_ways_out(cuda, same_major))


def _ways_out(cuda: Cuda, same_major: list[tuple[Path, str]]) -> list[str]:
    ways = [
        f"install the CUDA {cuda} toolkit and set CUDA_HOME to its root (or put its nvcc on PATH)",
    ]
    for home, version in same_major[:1]:
        ways.append(f"`--stand-in` compiles with the CUDA {version} at {home}, same major, and the wheel says so")
    if not same_major:
        ways.append(f"any CUDA {cuda.major}.x toolkit under CUDA_HOME serves with `--stand-in`, and the wheel says so")
    ways.append(
        f"CUDA {FIRST_PACKAGED} and newer need nothing installed: the toolkit comes from the package index"
        " (`--torch 2.11 --cuda 13.0`)"
    )
    return ways


def _on_disk(cuda: Cuda) -> Iterator[tuple[Path, str]]:
    """Toolkits of this machine, the user's own choice first."""
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
    """nvcc's version under a toolkit root, `12.4.131`, or empty when there is none that runs."""
    nvcc = home / "bin" / "nvcc"
    if not nvcc.exists():
        return ""
    try:
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # not a program, or one of another processor
        return ""
    match = re.search(r"V(\d+\.\d+\.\d+)", answer.stdout)
    return match[1] if match else ""


def find_host_compiler(cuda: Cuda, torch: Torch | None = None) -> HostCompiler:
    """A compiler this CUDA's nvcc accepts, and this torch's headers: CXX, else g++, else the newest g++-N they accept.

    `cuda` is the toolkit's own, which a stand-in has another of than the build. Raises MissingToolError when there
    is none.
    """
    limit: int | None = Compat.load().toolkit(cuda).gcc_max.value
    oldest, takes = 0, f"nvcc {cuda} takes gcc up to {limit}"
    if torch is not None:
        oldest, limit = Compat.load().gcc_range(torch, cuda)
        takes = f"nvcc {cuda} with torch {torch} takes gcc {oldest} to {limit}"
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
            f"{takes}, and {', '.join(refused)}",
            hints=[f"`apt-get install g++-{limit}` (or your system's), or set CC and CXX to such a gcc"],
        )
    raise MissingToolError(
        f"no C++ compiler ({chosen} of CXX does not run)" if chosen else "no C++ compiler on PATH",
        hints=["`apt-get install g++` (or your system's), or set CC and CXX"],
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
