"""What a worker has, measured: it becomes Dask resources, and is shown to clients."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.commands.distributed.protocol import (
    BUILDS,
    MANY,
    MEMORY,
    PROOF_MEMORY,
    PROOFS,
    version_resource,
    version_text,
)
from builder.errors import Code, MissingToolError
from builder.gate.amounts import counted
from builder.gate.system.nvidia import smi
from builder.images.engine import Engine
from builder.images.engine_errors import SDK_ERRORS
from builder.matrix.axes import Cuda, Python
from builder.matrix.compat import Compat
from builder.resources import SPARE_MEMORY, measure_resources
from builder.store import Store
from builder.wheels.toolchain.cuda_toolkit import find_host_compiler, find_toolkit
from builder.wheels.toolchain.pythons import find_python

#: Cores for each build that runs at the same time, unless the worker is told another number.
CORES_PER_BUILD = 4


@dataclass(frozen=True)
class Offer:
    """One of the Dask workers of a machine."""

    #: Of the tasks that it runs: BUILDS or PROOFS.
    kind: str
    #: How many of them run at the same time.
    threads: int
    #: Dask resources, the amount of each.
    resources: dict[str, float]


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker announces."""

    #: Of the machine, for messages.
    name: str
    #: Of buildfarm; see `version_text`.
    version: str
    #: Cores that this process may use.
    cores: int
    #: Bytes of memory that builds may use.
    memory: int
    #: Free bytes on the disk of the store.
    free_disk: int
    #: How many builds run at the same time.
    builds: int
    #: How many compilers each of them may start.
    jobs: int
    #: The model of each GPU: {"sm": "sm_90", "name": "NVIDIA H200"}.
    gpus: tuple[dict[str, str], ...] = ()
    #: The version of NVIDIA's driver, or empty.
    driver: str = ""
    #: The version of the Docker engine; empty if there is none that buildfarm can use.
    docker: str = ""
    #: Versions of the Pythons on this machine, `3.12`.
    pythons: tuple[str, ...] = ()
    #: CUDA versions that this machine compiles for without a container.
    toolkits: tuple[str, ...] = ()
    #: CUDA versions that it compiles for with `--allow-cuda-minor-mismatch`.
    minor_mismatches: tuple[str, ...] = field(default=())
    #: Why there is no C++ compiler for a CUDA version whose toolkit there is, by the version.
    compilers: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain data, which Dask sends to clients."""
        return asdict(self)

    def offers(self) -> tuple[Offer, Offer]:
        """A Dask worker for builds, and another one for proofs: Dask counts its workers' threads, not their resources.

        The memory of the machine is offered to both. Builds leave enough for a usual proof, if the machine has twice as
        much.
        """
        common = {version_resource(): MANY, **({"docker": MANY} if self.docker else {})}
        for_builds = self.memory - PROOF_MEMORY if self.memory >= 2 * PROOF_MEMORY else self.memory
        compilers: dict[str, int] = {}
        for cuda in Compat.load().cudas:
            here = {"": str(cuda) in self.toolkits, "-minor-mismatch": str(cuda) in self.minor_mismatches}
            for suffix, found in here.items():
                if found:
                    compilers[f"local-{cuda.variant}{suffix}"] = MANY
                if found or self.docker:
                    compilers[f"any-{cuda.variant}{suffix}"] = MANY
        gpus = {f"gpu-{sm}": count for sm, count in Counter(gpu["sm"] for gpu in self.gpus).items()}
        return (
            Offer(BUILDS, self.builds, {**common, BUILDS: self.builds, MEMORY: for_builds, **compilers}),
            Offer(PROOFS, 1, {**common, PROOFS: 1, MEMORY: self.memory, **gpus}),  # the op gate uses every core
        )


def compile_resource(executor: str, cuda: Cuda, *, minor_mismatch: bool) -> str:
    """The resource that a build for this CUDA asks for."""
    if executor == "docker":
        return "docker"
    return f"{'any' if executor == 'auto' else executor}-{cuda.variant}{'-minor-mismatch' if minor_mismatch else ''}"


def measure(store: Store, name: str, *, builds: int | None = None) -> WorkerFacts:
    """Look at this machine. `builds`: how many builds run at the same time; None: by the number of cores."""
    resources = measure_resources()
    parallel = builds or max(1, resources.cores // CORES_PER_BUILD)
    rows = [row for row in smi(["name", "compute_cap", "driver_version"]) if "compute_cap" in row]
    cudas = [
        (str(cuda), _lack(cuda, minor_mismatch=False), _lack(cuda, minor_mismatch=True)) for cuda in Compat.load().cudas
    ]
    return WorkerFacts(
        name=name,
        version=version_text(),
        cores=resources.cores,
        memory=max(resources.memory - SPARE_MEMORY, 0),
        free_disk=shutil.disk_usage(store.root).free,
        builds=parallel,
        jobs=max(1, resources.cores // parallel),
        gpus=tuple({"sm": f"sm_{row['compute_cap'].replace('.', '')}", "name": row.get("name", "")} for row in rows),
        driver=rows[0].get("driver_version", "") if rows else "",
        docker=_docker(),
        pythons=tuple(str(python) for python in _pythons()),
        toolkits=tuple(cuda for cuda, lack, _ in cudas if lack is None),
        minor_mismatches=tuple(cuda for cuda, _, lack in cudas if lack is None),
        compilers={cuda: lack for cuda, *lacks in cudas for lack in lacks if lack},
    )


def _docker() -> str:
    engine = Engine(may_pull=False)
    try:
        return "" if engine.problem() else engine.version()[0]
    except SDK_ERRORS:  # the engine has just ended
        return ""


def _pythons() -> list[Python]:
    versions = [Python(3, minor) for minor in range(8, max(15, sys.version_info.minor + 1))]
    return [python for python in versions if find_python(python)]


def _lack(cuda: Cuda, *, minor_mismatch: bool) -> str | None:
    """What is wrong with the C++ compiler for a CUDA version; empty without a toolkit, None if all is there."""
    try:
        toolkit = find_toolkit(cuda, minor_mismatch=minor_mismatch)
        version = Cuda.parse(".".join(toolkit.version.split(".")[:2]))
        find_host_compiler(version if toolkit.home else cuda)
    except MissingToolError as error:
        if error.code is Code.COMPILER_MISSING:
            return error.sentence
        return f"no C++ compiler for CUDA {cuda} ({error.sentence})" if error.code is Code.COMPILER_UNSUITABLE else ""
    return None


def lines(facts: WorkerFacts, store: Path) -> list[str]:
    """What `buildfarm worker` prints at its start."""
    gib = 2**30
    gpus = ", ".join(f"{gpu['name']} ({gpu['sm']})" for gpu in facts.gpus) or "no GPU"
    return [
        f"worker {facts.name}: buildfarm {facts.version}",
        f"  {facts.cores} cores, {facts.memory / gib:.0f} GiB of memory for builds, {gpus}"
        + (f", driver {facts.driver}" if facts.driver else ""),
        f"  {counted(facts.builds, 'build')} at the same time, {counted(facts.jobs, 'compiler')} each",
        f"  Docker {facts.docker}" if facts.docker else "  no Docker",
        f"  CUDA toolkits without a container: {', '.join(facts.toolkits) or 'none'}"
        + (f" ({'; '.join(dict.fromkeys(facts.compilers.values()))})" if facts.compilers else ""),
        f"  Pythons: {', '.join(facts.pythons)}",
        f"  store {store}: {facts.free_disk / gib:.0f} GiB free",
    ]
