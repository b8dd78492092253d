"""The cores, the memory and the disk space of this machine, and how many compilers they allow."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from builder.errors import DISK_HINT, BuildfarmError, Code, UsageError
from builder.gate.amounts import size_text
from builder.gate.system.nvidia import smi
from builder.matrix.axes import Arch

#: Bytes for an environment with torch and a CUDA toolkit (measured: 4.8 GB for torch 2.11 with CUDA 13.0).
ENVIRONMENT_BYTES = 6 * 2**30
#: Bytes for objects and wheels of one running build.
WORK_BYTES = 1 * 2**30
#: Bytes of memory left to other programs.
SPARE_MEMORY = 2**30
#: Folder with the limits of this process's control group (cgroup).
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Resources:
    """Number of cores and bytes of memory that this process may use."""

    cores: int
    memory: int


def measure_resources() -> Resources:
    """Return what this process may use: CPU affinity and the cgroup's memory limit count, not only the hardware."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().available
    for folder, limit, used in (
        (CGROUP, "memory.max", "memory.current"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            free = int((folder / limit).read_text()) - int((folder / used).read_text())
            memory = min(memory, free + _reclaimable(folder))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return Resources(cores, max(memory, 0))


def _reclaimable(folder: Path) -> int:
    """Return the bytes of cached files: the cgroup counts them as used, but the kernel frees them on demand."""
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def own_gpus() -> list[Arch]:
    """Return the architecture of each GPU of this machine; empty if nvidia-smi names none."""
    return [Arch.parse(row["compute_cap"]) for row in smi(["index", "compute_cap"]) if "compute_cap" in row]


def compile_jobs(resources: Resources, memory_per_job: int, wanted: int | None) -> int:
    """Return how many compilers may run in parallel: `wanted`, else as many as cores and memory allow, at least one.

    `memory_per_job` is in bytes.
    """
    if wanted is not None:
        return wanted
    by_memory = max(resources.memory - SPARE_MEMORY, 0) // memory_per_job
    return max(1, min(resources.cores, by_memory))


def environments_that_fit(folder: Path) -> int:
    """How many environments the disk of a folder has room for."""
    return shutil.disk_usage(folder).free // ENVIRONMENT_BYTES


def find_shortages(resources: Resources, memory_per_job: Iterable[int], store: Path) -> list[BuildfarmError]:
    """Return the errors for too little disk space and too little memory; `memory_per_job` is in bytes."""
    found: list[BuildfarmError] = []
    free = shutil.disk_usage(store).free
    if free < (needed := ENVIRONMENT_BYTES + WORK_BYTES):
        found.append(
            UsageError(
                f"{size_text(free)} are free, but a build needs up to {size_text(needed)}",
                Code.DISK_FULL,
                where=str(store),
                hints=[DISK_HINT, "pass `--store DIR` or set BUILDFARM_STORE to put the store on a different disk"],
            )
        )
    largest = max(memory_per_job, default=0)
    if resources.memory < largest:
        found.append(
            UsageError(
                f"{size_text(resources.memory)} of memory are available, but one compiler needs up to"
                f" {size_text(largest)}",
                Code.OUT_OF_MEMORY,
                hints=["close other programs, or lower `memory_per_job` in the recipe if the compiler needs less"],
            )
        )
    return found
