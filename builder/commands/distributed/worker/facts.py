"""What a worker has, measured: it becomes Dask resources."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from builder.commands.distributed.protocol import (
    BUILDS,
    GPU,
    MANY,
    MEMORY,
    PROOF_MEMORY,
    PROOFS,
    compile_resource,
    version_resource,
    version_text,
)
from builder.errors import MissingToolError
from builder.gate.amounts import counted
from builder.gate.system.nvidia import smi
from builder.images.container import SDK_ERRORS
from builder.images.engine import Engine
from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat
from builder.resources import SPARE_MEMORY, measure_resources
from builder.wheels.toolchain.cuda_toolkit import find_host_compiler, find_toolkit

#: Cores for each build that runs at the same time, unless the worker is told another number.
CORES_PER_BUILD = 4


class Offer(NamedTuple):
    """One of the Dask workers of a machine: it runs BUILDS or PROOFS, so many at the same time."""

    kind: str
    threads: int
    #: Dask resources, the amount of each.
    resources: dict[str, float]


@dataclass(frozen=True)
class WorkerFacts:
    """What the machine of a worker has."""

    #: The name of the machine in messages.
    name: str
    #: cores, memory: how many cores, and how many bytes of memory, builds may use.
    cores: int
    memory: int
    #: builds, jobs: how many builds run at the same time, and how many compilers each of them may start.
    builds: int
    jobs: int
    #: The model of each GPU, and its name: ("sm_90", "NVIDIA H200").
    gpus: tuple[tuple[str, str], ...] = ()
    #: The version of the Docker engine; empty if there is none that buildfarm can use.
    docker: str = ""
    #: CUDA versions that this machine compiles for without a container.
    toolkits: tuple[str, ...] = ()

    def offers(self) -> tuple[Offer, Offer]:
        """A Dask worker for builds, and another one for proofs: Dask counts its workers' threads, not their resources.

        The memory of the machine is offered to both. Builds leave enough for a usual proof, if the machine has twice as
        much.
        """
        common = {version_resource(): MANY, **({"docker": MANY} if self.docker else {})}
        for_builds = self.memory - PROOF_MEMORY if self.memory >= 2 * PROOF_MEMORY else self.memory
        compilers: dict[str, int] = {}
        for cuda in Compat.load().cudas:
            if str(cuda) in self.toolkits:
                compilers[compile_resource("local", cuda)] = MANY
            if str(cuda) in self.toolkits or self.docker:
                compilers[compile_resource("auto", cuda)] = MANY
        gpus = {GPU: len(self.gpus)} if self.gpus else {}
        return (
            Offer(BUILDS, self.builds, {**common, BUILDS: self.builds, MEMORY: for_builds, **compilers}),
            Offer(PROOFS, 1, {**common, PROOFS: 1, MEMORY: self.memory, **gpus}),  # the op gate uses every core
        )

    def lines(self, store: Path) -> list[str]:
        """What `buildfarm worker` prints at its start."""
        gib = 2**30
        gpus = ", ".join(f"{name} ({model})" for model, name in self.gpus) or "no GPU"
        return [
            f"worker {self.name}: buildfarm {version_text()}",
            f"  {self.cores} cores, {self.memory / gib:.0f} GiB of memory for builds, {gpus}",
            f"  {counted(self.builds, 'build')} at the same time, {counted(self.jobs, 'compiler')} each",
            f"  Docker {self.docker}" if self.docker else "  no Docker",
            f"  CUDA toolkits without a container: {', '.join(self.toolkits) or 'none with a C++ compiler'}",
            f"  store {store}: {shutil.disk_usage(store).free / gib:.0f} GiB free",
        ]


def measure(name: str, *, builds: int | None = None) -> WorkerFacts:
    """Look at this machine. `builds`: how many builds run at the same time; None: by the number of cores."""
    resources = measure_resources()
    parallel = builds or max(1, resources.cores // CORES_PER_BUILD)
    rows = [row for row in smi(["name", "compute_cap", "driver_version"]) if "compute_cap" in row]
    engine, docker = Engine(may_pull=False), ""
    with suppress(*SDK_ERRORS):  # the engine has just ended
        docker = "" if engine.problem() else engine.version()[0]
    return WorkerFacts(
        name=name,
        cores=resources.cores,
        memory=max(resources.memory - SPARE_MEMORY, 0),
        builds=parallel,
        jobs=max(1, resources.cores // parallel),
        gpus=tuple((f"sm_{row['compute_cap'].replace('.', '')}", row.get("name", "")) for row in rows),
        docker=docker,
        toolkits=tuple(map(str, filter(_compiles, Compat.load().cudas))),
    )


def _compiles(cuda: Cuda) -> bool:
    """Whether there is a toolkit for a CUDA version, with a C++ compiler."""
    try:
        toolkit = find_toolkit(cuda, minor_mismatch=False)
        find_host_compiler(Cuda.parse(".".join(toolkit.version.split(".")[:2])) if toolkit.home else cuda)
    except MissingToolError:
        return False
    return True
