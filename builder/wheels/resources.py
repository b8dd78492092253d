"""What this machine has for compiling: cores, memory, disk; and how many compilers that feeds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from builder.errors import FarmError, UsageError

#: An environment with torch and a CUDA toolkit, unpacked (measured: 4.8 GB for torch 2.11 with CUDA 13.0).
ENVIRONMENT_BYTES = 6 * 2**30
#: Objects and wheels of one build in flight.
WORK_BYTES = 1 * 2**30
#: Kept free for the rest of the machine.
SPARE_MEMORY = 2**30
#: Where the limits of this process's control group are read.
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Resources:
    """Cores usable by this process and bytes of memory available to it."""

    cores: int
    memory: int


def measure() -> Resources:
    """This process's share: affinity and cgroup limits count, not what the hardware has."""
    cores = len(os.sched_getaffinity(0))
    memory = _available()
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
    """Cached files count as used memory of a control group, yet the kernel gives them up when it is asked."""
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def compile_jobs(resources: Resources, memory_per_job: int, wanted: int | None) -> int:
    """How many compilers may run at once: what was asked for, else as many as cores and memory feed, at least one."""
    if wanted is not None:
        return wanted
    by_memory = max(resources.memory - SPARE_MEMORY, 0) // memory_per_job
    return max(1, min(resources.cores, by_memory))


def shortages(resources: Resources, memory_per_job: Iterable[int], store: Path) -> list[FarmError]:
    """Too little disk or memory for these builds, before any starts."""
    found: list[FarmError] = []
    free = shutil.disk_usage(store).free
    if free < (needed := ENVIRONMENT_BYTES + WORK_BYTES):
        found.append(
            UsageError(
                f"{free / 2**30:.1f} GiB free where a build needs up to {needed / 2**30:.0f} GiB",
                where=str(store),
                hints=["`--store DIR` or BUILDFARM_STORE puts the store on another disk"],
            )
        )
    largest = max(memory_per_job, default=0)
    if resources.memory < largest:
        found.append(
            UsageError(
                f"{resources.memory / 2**30:.1f} GiB of memory available where one compile job takes up to"
                f" {largest / 2**30:.1f} GiB",
                hints=["`memory_per_job` in the recipe says so; close other programs or build elsewhere"],
            )
        )
    return found
