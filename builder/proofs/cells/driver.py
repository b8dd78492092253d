"""NVIDIA's driver on this machine: whether it is loaded and new enough for a cell, so that a container gets the GPU."""

import re
import subprocess
from pathlib import Path

from builder.gate.system import nvidia
from builder.matrix.axes import Cell, Cuda
from builder.matrix.compat import Compat
from builder.wheelfile.compatibility import DRIVER_LIBRARIES, is_driver_library, is_older
from builder.wheelfile.facts import read_facts
from builder.wheels.build_scripts.new_environment import compile_stub

#: Functions of NVIDIA's driver: of libcuda, NVML and the video libraries.
_FUNCTION = re.compile(r"(?:cu[A-Z]|cuvid|nvml|NvEnc)\w*")


def make_stubs(wheel: Path, folder: Path) -> list[str]:
    """Fill a new folder with stubs of the driver's libraries that a wheel links; their names, none without `cc`."""
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
    """Version of the driver (`580.95.05`) from nvidia-smi; empty when it reports none."""
    return next((row["driver_version"] for row in nvidia.smi() if "driver_version" in row), "")


def driver_floor(cuda: Cuda, compat: Compat) -> str:
    """The oldest driver for programs of a CUDA; empty if compat.yaml does not know the CUDA."""
    return next((toolkit.driver_floor for toolkit in compat.toolkits if toolkit.cuda == cuda), "")


def driver_runs(driver: str, cuda: Cuda, compat: Compat) -> bool:
    """Whether a driver is new enough for a CUDA; an unknown driver or CUDA counts as new enough."""
    return not is_older(driver, driver_floor(cuda, compat))


def gpu_for(cell: Cell) -> tuple[bool, str]:
    """Whether a container of this cell requests this machine's GPU; if there is one that it does not request, why.

    NVIDIA's runtime does not start a container whose image requires a newer driver, and torch would find no GPU. Within
    a CUDA major, every minor runs on the driver that the first minor requires (compat.yaml, `driver_floors`).
    """
    compat, driver = Compat.load(), driver_version() if gpu_here() else ""
    if driver_runs(driver, cell.cuda, compat):
        return gpu_here(), ""
    needs = f"CUDA {cell.cuda}, which needs {driver_floor(cell.cuda, compat)} or newer: update the driver"
    return False, f"NVIDIA's driver {driver} here is too old for {needs}"
