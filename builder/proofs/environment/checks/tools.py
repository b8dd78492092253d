"""Programs that compile extensions: ninja, a C++ compiler, and an nvcc of torch's CUDA. All findings are notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.axes import Cuda
from builder.proofs.environment.cures import Cures, Finding, note
from builder.proofs.environment.facts import TorchInstall
from builder.wheels.toolchain.cuda_toolkit import USUAL_HOMES, nvcc_version


def check_tools(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """What a build of an extension in this environment needs."""
    tools = cures.environment.tools
    if not tools.ninja:
        why = "torch compiles extensions with ninja: `Ninja is required to load C++ extensions`"
        yield note("no-ninja", "there is no ninja in the environment or on PATH", why, (cures.install("ninja"),))
    if not tools.compiler:
        why = "extensions cannot be compiled, and torch.compile needs a compiler too"
        advice = "`apt-get install g++` (or your system's package), or set CXX"
        yield note("no-compiler", "there is no C++ compiler on PATH", why, advice=advice)
    elif not cures.environment.interpreter.headers:
        why = "extensions cannot be compiled: `Python.h: No such file or directory`"
        advice = "install your system's package of Python headers, such as python3-dev"
        yield note("no-headers", "the headers of this Python are missing", why, advice=advice)
    if torch.cuda is not None:
        yield from _nvcc(cures, torch, torch.cuda)
        yield from _compiler(cures, torch, torch.cuda)


def _nvcc(cures: Cures, torch: TorchInstall, cuda: Cuda) -> Iterator[Finding]:
    tools = cures.environment.tools
    found = Cuda.of_toolkit(tools.nvcc) if tools.nvcc else None
    if found and found.major == cuda.major:
        return
    homes = [Path(home.format(cuda=cuda)) for home in USUAL_HOMES]
    homes.insert(0, torch.folder / "nvidia" / f"cu{cuda.major}")  # nvidia-cuda-nvcc of the package index
    cure = tuple(f"export CUDA_HOME={home}" for home in homes if nvcc_version(home).startswith(f"{cuda}."))[:1]
    advice = "" if cure else f"install the CUDA {cuda} toolkit, and set CUDA_HOME to its folder"
    if advice and cuda >= cures.compat.first_packaged_toolkit:
        advice += "; `buildfarm build` brings a toolkit of its own"
    if found is None:
        what = f"there is no nvcc; CUDA extensions for torch {torch.version} need that of CUDA {cuda}"
        why = "CUDA extensions cannot be compiled: `CUDA_HOME environment variable is not set`"
        yield note("no-nvcc", what, why, cure, advice)
        return
    what = f"nvcc in {tools.home} is of CUDA {found}, but torch {torch.version} is for CUDA {cuda}"
    why = "torch refuses to compile CUDA extensions: `The detected CUDA version mismatches the version that was used`"
    yield note("nvcc-of-another-cuda", what, why, cure, advice)


def _compiler(cures: Cures, torch: TorchInstall, cuda: Cuda) -> Iterator[Finding]:
    tools = cures.environment.tools
    version = re.fullmatch(r".*g\+\+\S* (\d+)(?:\.\S*)?", tools.compiler)
    if torch.release is None or not version or not tools.nvcc:
        return
    try:
        oldest, newest = cures.compat.gcc_range(torch.release, cuda)
    except UsageError:
        return
    if not oldest <= int(version[1]) <= newest:
        what = f"{tools.compiler} does not suit torch {torch.version}, which takes g++ {oldest} to {newest}"
        why = "nvcc or torch's headers refuse other versions: `unsupported GNU version`"
        advice = f"`apt-get install g++-{newest}`, and set CC=gcc-{newest} and CXX=g++-{newest}"
        yield note("compiler-of-another-age", what, why, advice=advice)
