"""How Dask's scheduler and buildfarm's client bear many builds and proofs on many workers.

    python -m tests.benchmarks.distributed_scale --builds 10000 --workers 500 --minutes 6

The scheduler is the real one. The client is `Cluster` with the needs of `protocol.py`. The workers are Dask workers
with the resources that `WorkerFacts` announces and with buildfarm's plugin, 50 in one process. In place of a build or a
proof, a worker sleeps as long as one took when it was recorded, times a factor: `--minutes` is about the lower bound of
the time that the run takes. The tasks are those of the plan of this repository, with copies of its extensions.

It prints the CPU of the scheduler and of the client, and the makespan against its lower bound: the largest of the work
divided by the capacity for each kind of resource, and the longest build with its longest proof.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import dask
import psutil
from distributed import Worker, get_worker

from builder.commands.building.executor_choice import RunSettings
from builder.commands.distributed.client.run import MOST_BUILDS
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import (
    BUILDS,
    MEMORY,
    PROOFS,
    TOPIC,
    BuildTask,
    CheckTask,
    Needs,
    SentWheel,
    Task,
    WorkerAnswer,
)
from builder.commands.distributed.worker.facts import WorkerFacts
from builder.commands.distributed.worker.service import Service
from builder.hashing import digest_of
from builder.matrix.axes import Cell
from builder.matrix.config import Selection, WheelSource
from builder.matrix.load import read_plan
from tests.conftest import ROOT, wait_until
from tests.unit.wheels.make_record import build_record

#: Recorded seconds of builds, on machines with 2 cores: of the extensions of this repository and of torch_scatter, with
#: one architecture and with all, on a quiet and on a busy machine, with and without cached objects.
BUILD_SECONDS = (28, 62, 94, 20, 60, 300, 400, 52, 94, 172, 34, 30, 50)
#: Recorded seconds of the proofs of one cell: from an import only to an op gate with a fresh environment.
PROOF_SECONDS = (5, 13, 23, 32, 36, 60)
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
#: Workers of one process: each has connections to the others, and a process of 250 ran out of 20,000 open files.
WORKERS_OF_ONE = 50
#: Builds per extension; every so many builds, two of the proofs need a GPU.
BUILDS_OF_ONE, GPU_EVERY = 200, 5
#: The log of each task: bytes that zlib does not make smaller.
_LOG = zlib.compress(hashlib.shake_256(b"log").digest(4096))


def facts_of(number: int) -> WorkerFacts:
    """What a worker announces."""
    docker, builds, memory, gpus, toolkits = WORKER_KINDS[number % len(WORKER_KINDS)]
    return WorkerFacts(
        name=f"machine-{number}",
        cores=4 * builds,
        memory=memory << 30,
        builds=builds,
        jobs=4,
        gpus=tuple((sm, sm) for sm in gpus),
        docker="28.0" if docker else "",
        toolkits=toolkits,
    )


def seconds_of(task: Task) -> float:
    """Seconds of a task: about as many for all builds of an extension, and for all proofs of one."""
    build = cast("BuildTask", task).build
    figures = BUILD_SECONDS if isinstance(task, BuildTask) else PROOF_SECONDS
    around = 0.8 + 0.4 * int(hashlib.sha256(task.key.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return figures[int(hashlib.sha256(build.extension.encode()).hexdigest(), 16) % len(figures)] * around


@dataclass(frozen=True)
class Job:
    """One build, and the cells of its proofs with the GPU model that each needs."""

    task: BuildTask
    proofs: tuple[tuple[Cell, str], ...]

    def checks(self, wheel: SentWheel) -> list[CheckTask]:
        """The tasks of the proofs of its wheel."""
        task = self.task
        return [
            CheckTask(wheel, task.recipe, cell, task.settings, task.digest, task.build, gpu)
            for cell, gpu in self.proofs
        ]


def jobs(count: int) -> Iterator[Job]:
    """Builds of the plan for this repository's matrix, and of copies of its extensions; four proofs each."""
    matrix, recipes, plan = read_plan(ROOT / "matrix.yaml", Selection())
    builds = [build for build in plan.builds if not isinstance(recipes[build.extension].source, WheelSource)]
    settings = RunSettings(replace(matrix, extensions=()))
    cells = sorted({cell for build in builds for cell in build.serves})
    each = max(1, min(BUILDS_OF_ONE, count // 13))
    for number in range(count):
        copy, at = divmod(number, each)
        build = builds[(copy * 37 + at) % len(builds)]
        name = f"{build.extension}_{copy}"
        build, recipe = replace(build, extension=name), replace(recipes[build.extension], name=name)
        tested = tuple(dict.fromkeys((*build.serves, *cells)))[:4]
        gpus = ("sm_80", "sm_90", "", "") if number % GPU_EVERY == 0 else ("", "", "", "")
        task = BuildTask(digest_of([number, str(build)]), build, recipe, settings)
        yield Job(task, tuple(zip(tested, gpus, strict=True)))


@cache
def parcel(extension: str) -> Mapping[str, bytes]:
    """The files of an extension: made-up bytes."""
    return {f"parcel-{digest_of(extension)[:32]}": hashlib.shake_256(extension.encode()).digest(200_000)}


async def sleep_for(task: Task, *_parts: bytes) -> WorkerAnswer:
    """What a worker does in place of a task: report its stages, sleep, and answer."""
    worker = get_worker()
    about = {"machine": worker.name, "key": task.key, "title": task.title}
    for stage in ("compile", "repair"):
        worker.log_event(TOPIC, about | {"stage": stage})
    await asyncio.sleep(seconds_of(task) * float(os.environ["FARM_SCALE"]))
    answer = WorkerAnswer(worker.address, str(worker.name), log=_LOG)
    if isinstance(task, CheckTask):
        return answer
    name = f"{task.build.extension}-1.0-py3-none-any.whl"
    return replace(answer, wheel=SentWheel(name, digest_of(task.digest), 10**7, task.digest, build_record()))


async def serve(scheduler: str, folder: str, first: int, last: int) -> None:
    """Run the workers with these numbers until the scheduler ends."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
    # What each worker does many times a second. On a machine of its own nobody would notice.
    quiet = {"worker.profile.enabled": False, "admin.system-monitor.interval": "1h", "admin.tick.interval": "1h"}
    with dask.config.set({f"distributed.{name}": value for name, value in quiet.items()}):
        async with AsyncExitStack() as stack:
            for number in range(first, last):
                facts = facts_of(number)
                for offer in facts.offers():
                    worker = Worker(
                        scheduler,
                        nthreads=offer.threads,
                        name=f"{facts.name}-{offer.kind}",
                        resources=offer.resources,
                        memory_limit=0,
                        local_directory=f"{folder}/dask",
                        plugins=(Service(Path(folder), facts),),
                        dashboard=False,
                        host="127.0.0.1",
                    )
                    await stack.enter_async_context(worker)
            Path(folder, f"ready-{first}").touch()
            await worker.finished()  # type: ignore[no-untyped-call]


@contextmanager
def farm(folder: Path, count: int, factor: float) -> Iterator[tuple[str, psutil.Process]]:
    """Run the scheduler and the workers; give the address and the process of the scheduler."""
    # Dask moves waiting tasks once a second; the tasks are shorter than real ones by this factor.
    stealing = {"DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING_INTERVAL": f"{max(20, round(1000 * factor))}ms"}
    file, env = folder / "scheduler.json", os.environ | stealing | {"FARM_SCALE": str(factor)}
    argv = ["dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with (folder / "log").open("wb") as log:
        processes = [subprocess.Popen([sys.executable, "-m", *argv], stderr=log, env=env)]
        try:
            wait_until(lambda: file.is_file() and file.read_text().rstrip().endswith("}"), "a scheduler that listens")
            address = str(json.loads(file.read_text())["address"])
            firsts = range(0, count, WORKERS_OF_ONE)
            for first in firsts:
                numbers = (str(first), str(min(first + WORKERS_OF_ONE, count)))
                program = [sys.executable, "-m", "tests.benchmarks.distributed_scale", "--serve", address, str(folder)]
                processes.append(subprocess.Popen([*program, *numbers], stderr=log, env=env))
            wait_until(lambda: len(list(folder.glob("ready-*"))) == len(firsts), "workers that are connected")
            yield address, psutil.Process(processes[0].pid)
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def lower_bounds(todo: Sequence[Job], count: int) -> dict[str, float]:
    """Recorded seconds below which no order of the tasks can end, by what limits it."""
    offers = [offer.resources for n in range(count) for offer in facts_of(n).offers()]
    work: dict[tuple[str, str], float] = defaultdict(float)
    longest = 0.0
    for job in todo:
        checks = job.checks(SentWheel("", "", 0, "", build_record()))
        longest = max(longest, seconds_of(job.task) + max(map(seconds_of, checks)))
        tasks: list[Task] = [job.task, *checks]
        for task in tasks:
            needs: Needs = task.needs
            kind = PROOFS if PROOFS in needs else BUILDS
            for name, (amount, _) in needs.items():  # the workers that have another resource run so many of these tasks
                work[kind, name] += seconds_of(task) * (amount if name == MEMORY else 1)
    bounds = {
        f"{name} of {kind}": amount / sum(offer.get(name, 0) for offer in offers if kind in offer)
        for (kind, name), amount in work.items()
    }
    return bounds | {"longest chain": longest}


def run_all(address: str, todo: Sequence[Job]) -> tuple[float, Counter[str]]:
    """Every build, and its proofs as soon as it has ended, as `RemoteRun` does; the seconds, and the errors."""
    errors: Counter[str] = Counter()
    function = cast("Callable[..., WorkerAnswer]", sleep_for)
    cluster = Cluster(address, patience=600, on_stage=lambda *_: None, function=function)

    def compute(task: BuildTask | CheckTask) -> WorkerAnswer:
        answer = cluster.compute(task, parcel(task.build.extension))
        errors.update([answer.error.sentence] if answer.error else [])
        return answer

    def one(job: Job) -> None:
        if (wheel := compute(job.task).wheel) is not None:
            with ThreadPoolExecutor(len(job.proofs)) as pool:
                list(pool.map(compute, job.checks(wheel)))

    began = time.monotonic()
    with closing(cluster), ThreadPoolExecutor(MOST_BUILDS) as pool:
        list(pool.map(one, todo))
    return time.monotonic() - began, errors


def main() -> None:
    """Measure and print; with `--serve`, be some of the workers."""
    if sys.argv[1:2] == ["--serve"]:
        address, folder, first, last = sys.argv[2:]
        asyncio.run(serve(address, folder, int(first), int(last)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--builds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2.0, help="about the lower bound of the run's time")
    options = parser.parse_args()
    todo = list(jobs(options.builds))
    bounds = lower_bounds(todo, options.workers)
    factor = options.minutes * 60 / max(bounds.values())
    with tempfile.TemporaryDirectory() as name, farm(Path(name), options.workers, factor) as (address, scheduler):
        before, client = scheduler.cpu_times(), time.process_time()
        makespan, errors = run_all(address, todo)
        client, after = time.process_time() - client, scheduler.cpu_times()
    tasks = sum(1 + len(job.proofs) for job in todo)
    print(f"{len(todo)} builds, {tasks - len(todo)} proofs, {options.workers} workers; seconds x {factor:.4f}")
    for sentence, count in errors.items():
        print(f"FAILED {count} times: {sentence}")
    print(f"makespan {makespan:.1f} s: {makespan / options.minutes / 60:.3f} x the lower bound")
    for limit, seconds in sorted(bounds.items(), key=lambda item: -item[1])[:5]:
        print(f"  {seconds * factor:8.1f} s  {limit}")
    used = after.user + after.system - before.user - before.system
    for program, cpu in (("scheduler", used), ("client", client)):
        print(f"{program}: {1000 * cpu / tasks:.2f} ms of CPU per task, {cpu / makespan:.0%} of one core")


if __name__ == "__main__":
    main()
