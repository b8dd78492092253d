"""NVIDIA's driver on this machine: whether there is one, which, and whether it is new enough for a cell."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import InvalidVersion, Version

from builder.gate import nvidia
from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat

#: What the driver makes: on Linux itself, and under WSL.
_NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

_KERNEL = Path("/proc/driver/nvidia/version")


def gpu_here() -> bool:
    """Whether this machine has a GPU with its driver loaded."""
    return any(node.exists() for node in _NODES)


def driver_version() -> str:
    """The driver's version, `580.95.05`, from nvidia-smi or from its kernel module; empty where neither tells."""
    for row in nvidia.smi():
        if version := row.get("driver_version"):
            return version
    try:
        said = re.search(r"Kernel Module.*?\b(\d+(?:\.\d+)+)", _KERNEL.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return said[1] if said else ""


def too_old(driver: str, cuda: Cuda) -> str:
    """Why a driver runs no program of a CUDA version, or nothing; a version nobody can read is taken as new enough.

    Within a CUDA major every minor runs on the driver of the first (compat.yaml, `driver_floors`).
    """
    floor = Compat.load().toolkit(cuda).driver_floor
    try:
        older = Version(driver) < Version(floor)
    except InvalidVersion:
        return ""
    return f"NVIDIA's driver {driver} here is too old for CUDA {cuda}: it needs {floor} or newer" if older else ""
