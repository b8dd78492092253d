"""The machine: its driver and GPUs against torch, and the programs that compile extensions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Gpu
from builder.proofs.cells.driver import driver_floor, driver_runs
from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledEnvironment, TorchInstall
from builder.wheelfile.compatibility import runs_on
from builder.wheelfile.fatbin import read_device_code
from builder.wheels.toolchain.cuda_toolkit import USUAL_HOMES, nvcc_version


def check_gpus(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The driver runs torch's CUDA, and torch has code for each GPU."""
    environment, machine, cuda = cures.environment, cures.environment.machine, torch.cuda
    if cuda is None:
        if machine.gpus:
            what = f"torch {torch.version} is a CPU build, which cannot use the {machine.gpus[0].name}"
            yield note("torch-without-cuda", what, "`torch.cuda.is_available()` is False", *_other_torch(cures))
        return
    if machine.driver and not driver_runs(machine.driver, cuda, cures.compat):
        floor, (cure, advice) = driver_floor(cuda, cures.compat), _other_torch(cures)
        yield fault(
            "driver-too-old",
            f"NVIDIA's driver {machine.driver} is too old for torch {torch.version}: CUDA {cuda} needs driver {floor}"
            " or newer",
            "torch finds no GPU: `The NVIDIA driver on your system is too old`",
            cure,
            f"driver {floor} or newer runs the installed torch" if cure else advice,
        )
    codes = _torch_code(cures, torch)
    for gpu in dict.fromkeys(machine.gpus):
        if codes and not runs_on(codes, gpu.arch):
            yield fault(
                "gpu-unknown-to-torch",
                f"torch {torch.version} has no code for the {_named([gpu])}, only for {', '.join(codes)}",
                "the first kernel fails with `no kernel image is available for execution on the device`",
                *_other_torch(cures),
            )
        elif not cures.nvrtc_knows(_nvrtc_cuda(environment, cuda), gpu.arch):
            yield fault(
                "gpu-unknown-to-nvrtc",
                f"the runtime compiler of CUDA {cuda} in torch {torch.version} does not know the {_named([gpu])}",
                "some ops fail with `nvrtc: error: invalid value for --gpu-architecture (-arch)`",
                *_other_torch(cures),
            )


def _other_torch(cures: Cures) -> tuple[tuple[str, ...], str]:
    """The command that installs a torch for this Python, driver and these GPUs, or why there is none."""
    if cure := cures.fitting_torch():
        return cure, ""
    if none := cures.unsupported_gpus():
        return (), f"no torch in buildfarm's version table supports the {_named(none)}"
    machine = cures.environment.machine
    where = " and ".join(filter(None, [machine.driver and f"driver {machine.driver}", _named(machine.gpus)]))
    return (), (
        f"no torch in buildfarm's version table is for Python {cures.environment.interpreter.python} and {where}:"
        " update the driver or Python"
    )


def _named(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in gpus)


def _torch_code(cures: Cures, torch: TorchInstall) -> tuple[str, ...]:
    """The machine code in torch's libraries (`sm_90`); from compat.yaml if the libraries cannot be read."""
    codes: dict[str, int] = {}
    for library in sorted(torch.libraries.glob("libtorch_cuda*.so")):
        try:
            codes.update(read_device_code(library).sizes)
        except UsageError:
            continue
    if codes:
        return tuple(sorted(codes, key=lambda code: (code.startswith("compute"), len(code), code)))
    if torch.release is None or torch.cuda is None or torch.release not in cures.compat.torches:
        return ()
    return tuple(a.sm for a in cures.compat.official_archs(torch.release, torch.cuda, cures.environment.platform))


def _nvrtc_cuda(environment: InstalledEnvironment, cuda: Cuda) -> Cuda:
    """The CUDA of the NVRTC that torch loads: that of its package, else torch's."""
    for name in (f"nvidia-cuda-nvrtc-cu{cuda.major}", "nvidia-cuda-nvrtc"):
        if package := environment.visible.get(name):
            major, minor, *_ = [*package.version.split("."), "", ""]
            if major.isdecimal() and minor.isdecimal() and int(major) == cuda.major:
                return Cuda(int(major), int(minor))
    return cuda


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
