"""Five hundred workers that only sleep, and the builds and proofs that they get; `distributed_scale.py` uses both.

The workers are real Dask workers in few processes, with the resources that `WorkerFacts` announces and with buildfarm's
plugin. The tasks are those of a real plan, with copies of its extensions. In place of a build or a proof, the worker
sleeps as long as one took when it was recorded, times a factor.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast
from uuid import uuid4

import dask
from distributed import Worker, get_worker

from builder.commands.distributed.protocol import TOPIC, BuildTask, CheckTask, SentWheel, Task, WorkerAnswer
from builder.commands.distributed.worker.facts import Offer, WorkerFacts
from builder.commands.distributed.worker.service import Service
from builder.commands.run_settings import RunSettings
from builder.hashing import digest_of
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe, Selection, WheelSource
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import Build, make_plan
from builder.records import BuildRecord
from tests.unit.wheels.make_record import TOOLCHAIN, build_record, record

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]

#: Recorded builds: seconds, GiB of memory, and where the figure comes from. Machines with 2 cores, 2 compilers.
BUILD_FIGURES = (
    (28, 3, "ms_deform_attn, one architecture, quiet machine"),
    (62, 3, "ms_deform_attn, all architectures, quiet machine"),
    (94, 3, "ms_deform_attn, `seconds` of a build record in a test's store, machine shared with other tests"),
    (20, 2, "diffrast, quiet machine, objects partly cached"),
    (60, 2, "diffrast, quiet machine"),
    (300, 4, "torch_scatter, one architecture, quiet machine"),
    (400, 4, "torch_scatter, all architectures, quiet machine"),
    (52, 2, "toy_attn, `seconds` of a build record in a test's store"),
    (94, 2, "toy_attn, the same with another torch"),
    (172, 2, "axpby, `seconds` of a build record in a test's store, machine shared with other tests"),
    (34, 1, "box_blur, docs/recordings/timeline.json: compile and repair"),
    (30, 1, "median, docs/recordings/timeline.json: compile and repair"),
    (50, 1, "sharpen, docs/recordings/timeline.json: compile"),
)
#: Recorded proofs of one cell: seconds, and where the figure comes from.
PROOF_FIGURES = (
    (5, "import only"),
    (13, "median in cp312, docs/recordings/timeline.json: prove, environment present"),
    (23, "median in cp311, docs/recordings/timeline.json: prove"),
    (32, "box_blur in cp312, docs/recordings/timeline.json: prove"),
    (36, "median in cp311, docs/recordings/timeline.json: run every op"),
    (60, "op gate of ms_deform_attn with a fresh environment"),
)
#: The kinds of workers: Docker, build slots, GiB of memory, GPUs, CUDA toolkits without a container.
WORKER_KINDS: tuple[tuple[bool, int, int, tuple[str, ...], tuple[str, ...]], ...] = (
    (True, 4, 128, ("sm_90", "sm_90"), ()),
    (True, 4, 64, ("sm_80",), ("13.0",)),
    (True, 2, 32, (), ()),
    (True, 2, 16, (), ()),
    (True, 1, 8, (), ()),
    (True, 4, 64, (), ("12.8", "13.0")),
    (False, 1, 8, (), ("13.0",)),
    (False, 2, 32, ("sm_80",), ("12.8", "13.0")),
    (False, 3, 32, (), ("12.6", "12.8")),
    (False, 2, 16, (), ("13.0",)),
)
#: Stages that a worker reports of each task.
STAGES = ("compile", "repair")
#: The log of each task: bytes that zlib does not make smaller.
_LOG = zlib.compress(hashlib.shake_256(b"log").digest(4096))
#: Builds per extension, and bytes of each extension's files.
BUILDS_OF_ONE, PARCEL_BYTES = 200, 200_000
#: Every so many builds, two of the proofs need a GPU.
GPU_EVERY = 5


def facts_of(number: int) -> WorkerFacts:
    """What a worker announces."""
    docker, builds, memory, gpus, toolkits = WORKER_KINDS[number % len(WORKER_KINDS)]
    return WorkerFacts(
        name=f"machine-{number}",
        cores=4 * builds,
        memory=memory * GIB,
        builds=builds,
        jobs=4,
        gpus=tuple((sm, sm) for sm in gpus),
        docker="28.0" if docker else "",
        toolkits=toolkits,
    )


def _number(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def seconds_of(task: Task) -> float:
    """Seconds of a task. All builds of an extension take about as long."""
    if isinstance(task, BuildTask):
        at = _number(task.build.extension)
        return BUILD_FIGURES[at % len(BUILD_FIGURES)][0] * _around(str(task.build))
    at = _number(cast("Build", task.build).extension)
    return PROOF_FIGURES[at // 97 % len(PROOF_FIGURES)][0] * _around(task.key)


def _around(name: str) -> float:
    """A factor between 0.8 and 1.2."""
    return 0.8 + 0.4 * (int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF)


@cache
def _records() -> Mapping[str, BuildRecord]:
    return {executor: build_record(record(replace(TOOLCHAIN, executor=executor))) for executor in ("docker", "local")}


@dataclass(frozen=True)
class Job:
    """One build, its recipe, and the cells of its proofs with the GPU model that each needs."""

    task: BuildTask
    proofs: tuple[tuple[Cell, str], ...]

    def proof(self, wheel: SentWheel, cell: Cell, gpu: str) -> CheckTask:
        """The task of one proof."""
        assert wheel.record
        settings = replace(self.task.settings, executor=wheel.record.record.toolchain.executor)
        return CheckTask(wheel, self.task.recipe, cell, settings, self.task.digest, self.task.build, gpu)


def jobs(count: int) -> list[Job]:
    """Builds of a plan for this repository's matrix, and of copies of its extensions; four proofs each."""
    matrix = load_matrix(ROOT / "matrix.yaml")
    recipes = [recipe for recipe in load_recipes(matrix) if not isinstance(recipe.source, WheelSource)]
    builds = make_plan(matrix, recipes, Selection(), Compat.load()).builds
    settings = RunSettings(replace(matrix, extensions=()))
    by_name = {recipe.name: recipe for recipe in recipes}
    cells = sorted({cell for build in builds for cell in build.serves})
    return list(_jobs(count, builds, by_name, cells, settings))


def _jobs(
    count: int, builds: tuple[Build, ...], recipes: Mapping[str, Recipe], cells: list[Cell], settings: RunSettings
) -> Iterator[Job]:
    each = max(1, min(BUILDS_OF_ONE, count // 13))
    for number in range(count):
        copy, at = divmod(number, each)
        build = builds[(copy * 37 + at) % len(builds)]
        name = f"{build.extension}_{copy}"
        build, recipe = replace(build, extension=name), replace(recipes[build.extension], name=name)
        tested = tuple(dict.fromkeys((*build.serves, *cells)))[:4]
        gpus = ("sm_80", "sm_90", "", "") if number % GPU_EVERY == 0 else ("", "", "", "")
        digest = digest_of([number, str(build)])
        yield Job(BuildTask(digest, build, recipe, settings), tuple(zip(tested, gpus, strict=True)))


@cache
def parcel(extension: str) -> Mapping[str, bytes]:
    """The files of an extension: made-up bytes."""
    data = b"".join(hashlib.sha256(f"{extension}{i}".encode()).digest() for i in range(PARCEL_BYTES // 32))
    return {f"parcel-{hashlib.sha256(data).hexdigest()[:32]}": data}


async def sleep_for(task: Task, *_parts: bytes) -> WorkerAnswer:
    """What a worker does in place of a task: report its stages, sleep, and answer."""
    worker = get_worker()
    run = {"run": uuid4().hex, "worker": worker.address, "machine": worker.name}
    about = run | {"key": task.key, "title": task.title}
    for stage in ("start", *STAGES):
        worker.log_event(TOPIC, about | {"stage": stage})
    seconds = seconds_of(task)
    await asyncio.sleep(seconds * float(os.environ["FARM_SCALE"]))
    worker.log_event(TOPIC, about | {"stage": "end"})
    answer = WorkerAnswer(worker.address, str(worker.name), log=_LOG)
    if isinstance(task, CheckTask):
        return answer
    executor = "docker" if "docker" in worker.state.total_resources else "local"
    name = f"{task.build.extension}-1.0-py3-none-any.whl"
    sha256 = hashlib.sha256(task.digest.encode()).hexdigest()
    return replace(answer, wheel=SentWheel(name, sha256, 10**7, task.digest, _records()[executor]))


async def serve(scheduler: str, folder: Path, first: int, last: int) -> None:
    """Run the workers with these numbers until the scheduler ends."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    # What each worker does many times a second. On a machine of its own nobody would notice.
    quiet = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "1h",
        "distributed.admin.tick.interval": "1h",
        "distributed.admin.tick.cycle": "1h",
    }
    with dask.config.set(quiet):
        async with AsyncExitStack() as stack:
            machines = [facts_of(number) for number in range(first, last)]
            workers = [_worker(scheduler, folder, facts, offer) for facts in machines for offer in facts.offers()]
            for start in range(0, len(workers), 25):
                await asyncio.gather(*(stack.enter_async_context(worker) for worker in workers[start : start + 25]))
            print("ready", flush=True)
            await asyncio.gather(*(worker.finished() for worker in workers))  # type: ignore[no-untyped-call]


def _worker(scheduler: str, folder: Path, facts: WorkerFacts, offer: Offer) -> Worker:
    return Worker(
        scheduler,
        nthreads=offer.threads,
        name=f"{facts.name}-{offer.kind}",
        resources=offer.resources,
        memory_limit=0,
        local_directory=str(folder / "dask"),
        plugins=(Service(folder, facts),),
        dashboard=False,
        host="127.0.0.1",
    )


def main() -> None:
    """Arguments: the scheduler, a folder, the first number, and the number after the last one."""
    scheduler, folder, first, last = sys.argv[1:]
    asyncio.run(serve(scheduler, Path(folder), int(first), int(last)))


if __name__ == "__main__":
    main()
