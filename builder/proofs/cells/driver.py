"""NVIDIA's driver on this machine: whether it is loaded and new enough for a cell, so that a container gets the GPU."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.gate.system import nvidia
from builder.matrix.axes import Cell, Cuda
from builder.matrix.compat import Compat
from builder.wheelfile.driver import DRIVER_LIBRARIES, is_driver_library
from builder.wheelfile.facts import read_facts
from builder.wheels.build_scripts.cuda_packages import compile_stub

_KERNEL = Path("/proc/driver/nvidia/version")


#: Functions of NVIDIA's driver: of libcuda, NVML and the video libraries.
_FUNCTION = re.compile(r"(?:cu[A-Z]|cuvid|nvml|NvEnc)\w*")


def make_stubs(wheel: Path, folder: Path) -> list[str]:
    """Fill a new folder with stubs of the driver's libraries that a wheel links; returns their names.

    They have the functions that the wheel calls; each returns an error. No names without a C compiler.
    """
    linked = [one for one in read_facts(wheel).libraries if any(map(is_driver_library, one.needed))]
    names = sorted({name for one in linked for name in one.needed if name in DRIVER_LIBRARIES})
    functions = sorted({name for one in linked for name in one.undefined if _FUNCTION.fullmatch(name)})
    folder.mkdir()
    try:
        for name in names:
            compile_stub(folder / name, name, functions, "cc")
    except (OSError, subprocess.CalledProcessError):
        return []
    return names


def gpu_here() -> bool:
    """Whether this machine has a GPU with its driver loaded."""
    return any(node.exists() for node in nvidia.NODES)


def driver_version() -> str:
    """Version of the driver (`580.95.05`) from nvidia-smi or from the kernel module; empty when neither reports one."""
    for row in nvidia.smi():
        if version := row.get("driver_version"):
            return version
    try:
        found = re.search(r"Kernel Module.*?\b(\d+(?:\.\d+)+)", _KERNEL.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


def driver_floor(cuda: Cuda, compat: Compat) -> str:
    """The oldest driver for programs of a CUDA; empty if compat.yaml does not know the CUDA."""
    try:
        return compat.toolkit(cuda).driver_floor
    except UsageError:
        return ""


def driver_runs(driver: str, cuda: Cuda, compat: Compat) -> bool:
    """Whether a driver is new enough for a CUDA; an unknown driver or CUDA counts as new enough."""
    try:
        return Version(driver) >= Version(driver_floor(cuda, compat))
    except InvalidVersion:
        return True


def too_old(driver: str, cuda: Cuda) -> str:
    """Why a driver cannot run programs of a CUDA version, or empty; an unknown version counts as new enough.

    Within a CUDA major, every minor runs on the driver that the first minor requires (compat.yaml, `driver_floors`).
    """
    if driver_runs(driver, cuda, Compat.load()):
        return ""
    needs = f"CUDA {cuda}, which needs {driver_floor(cuda, Compat.load())} or newer: update the driver"
    return f"NVIDIA's driver {driver} here is too old for {needs}"


@dataclass(frozen=True)
class GpuRequest:
    """Whether a container requests this machine's GPU; if there is a GPU that it does not request, why."""

    wanted: bool
    why_not: str = ""


def gpu_for(cell: Cell) -> GpuRequest:
    """Decide whether a container of this cell requests the GPU; starts nothing."""
    # NVIDIA's runtime does not start a container whose image requires a newer driver, and torch would find no GPU.
    reason = too_old(driver_version(), cell.cuda) if gpu_here() else ""
    return GpuRequest(wanted=gpu_here() and not reason, why_not=reason)
