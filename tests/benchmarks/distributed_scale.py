"""How Dask's scheduler and buildfarm's client bear 10,000 builds and 40,000 proofs on 500 workers.

    python -m tests.benchmarks.distributed_scale --builds 10000 --workers 500 --minutes 6

The scheduler is the real one, in a process of its own. The client is `Cluster` with the needs of `protocol.py`. The
workers are Dask workers in processes of their own, which sleep in place of building; see `simulated_farm.py` for the
recorded durations. `--minutes` is the lower bound of the time that the run takes: it sets the factor by which the
durations are scaled.

It prints the CPU and the wall time per task, the most memory of the scheduler and of the client, and the makespan
against its lower bound: the largest of the work divided by the capacity for each kind of resource, and the longest
build with its longest proof.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

import psutil

from builder.commands.distributed.client.prove import append_log
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import BUILDS, MEMORY, PROOF_MEMORY, PROOFS, Needs, Task, WorkerAnswer
from tests.benchmarks.simulated_farm import PROOF_FIGURES, Job, facts_of, jobs, parcel, seconds_of, sleep_for

#: At least so many processes of workers; more where a process would have more workers. A process of 250 workers ran out
#: of 20,000 open files, because each worker has connections to the others.
PROCESSES, WORKERS_OF_ONE = 2, 50


@dataclass
class Run:
    """What happened: recorded seconds and needs of each task, seconds of each build with its longest proof, errors."""

    tasks: list[tuple[float, Needs]] = field(default_factory=list)
    chains: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


@contextmanager
def scheduler(folder: Path, settings: dict[str, str]) -> Iterator[tuple[str, psutil.Process]]:
    """Run Dask's scheduler; give its address and process."""
    file = folder / "scheduler.json"
    argv = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    with (folder / "scheduler.log").open("wb") as log:
        process = subprocess.Popen([*argv, "--scheduler-file", str(file)], stderr=log, env=os.environ | settings)
    try:
        deadline = time.monotonic() + 60
        while not file.exists():
            if time.monotonic() > deadline:
                sys.exit((folder / "scheduler.log").read_text())
            time.sleep(0.1)
        time.sleep(0.2)
        yield json.loads(file.read_text())["address"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def workers(address: str, folder: Path, count: int, scale: float) -> Iterator[list[psutil.Process]]:
    """Run the workers in some processes; give these."""
    processes_count = max(PROCESSES, -(-count // WORKERS_OF_ONE))
    edges = [count * i // processes_count for i in range(processes_count + 1)]
    env = os.environ | {"FARM_SCALE": str(scale)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.simulated_farm", address, str(folder), str(first), str(last)],
            stdout=subprocess.PIPE,
            env=env,
        )
        for first, last in pairwise(edges)
    ]
    try:
        for process in processes:
            assert process.stdout
            if process.stdout.readline() != b"ready\n":
                sys.exit("the workers did not start")
        yield [psutil.Process(process.pid) for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def run_all(cluster: Cluster, todo: Sequence[Job], log: Path) -> Run:
    """Every build, and its proofs as soon as it has ended, as `RemoteRun` does."""
    run = Run()

    async def compute(job: Job, task: Task) -> WorkerAnswer:
        answer = await cluster.compute(task, parcel(job.task.build.extension))
        run.tasks.append((seconds_of(task), task.needs))
        if answer.error:
            run.failures[answer.error.sentence] += 1
        log.unlink(missing_ok=True)
        await append_log(answer, log)
        return answer

    async def one(job: Job) -> None:
        answer = await compute(job, job.task)
        if answer.wheel is None:
            return
        proofs = [job.proof(answer.wheel, cell, gpu) for cell, gpu in job.proofs]
        await asyncio.gather(*(compute(job, proof) for proof in proofs))
        run.chains.append(seconds_of(job.task) + max(map(seconds_of, proofs)))

    await asyncio.gather(*map(one, todo))
    return run


def lower_bounds(run: Run, count: int) -> dict[str, float]:
    """Recorded seconds below which no order of the tasks can end, by what limits it."""
    offers = [offer.resources for n in range(count) for offer in facts_of(n).offers()]
    work: dict[str, float] = defaultdict(float)
    for seconds, needs in run.tasks:
        kind = PROOFS if PROOFS in needs else BUILDS
        for name, (amount, _) in needs.items():
            if name == MEMORY:
                work[f"{kind}, {MEMORY}"] += seconds * amount
            elif name == kind:
                work[name] += seconds
            else:  # the workers that have it run so many of these tasks
                work[f"{name}, {kind}"] += seconds
    capacity = {name: _capacity(name, offers) for name in work}
    bounds = {name: amount / capacity[name] for name, amount in work.items()}
    return bounds | {"longest chain": max(run.chains, default=0.0)}


def _capacity(name: str, offers: Sequence[Mapping[str, float]]) -> float:
    kind, _, of = name.partition(", ")
    return sum(offer.get(of or kind, 0) for offer in offers if offer.get(kind))


def expected(todo: Sequence[Job], count: int) -> float:
    """About the lower bound, before the run."""
    run = Run()
    usual: Needs = {PROOFS: (1, ""), MEMORY: (PROOF_MEMORY, "")}
    mean = sum(seconds for seconds, _ in PROOF_FIGURES) / len(PROOF_FIGURES)
    for job in todo:
        run.tasks.append((seconds_of(job.task), job.task.needs))
        run.tasks += [(mean, usual)] * len(job.proofs)
    return max(lower_bounds(run, count).values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--builds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2.0, help="about the lower bound of the run's time")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the scheduler")
    options = parser.parse_args()
    todo = jobs(options.builds)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        factor = options.minutes * 60 / expected(todo, options.workers)
        # Dask moves waiting tasks once a second; the tasks are shorter than real ones by this factor.
        stealing = {"DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING_INTERVAL": f"{max(20, round(1000 * factor))}ms"}
        settings = stealing | dict(item.split("=", 1) for item in options.set)
        address, process = stack.enter_context(scheduler(folder, settings))
        farm = stack.enter_context(workers(address, folder / "workers", options.workers, factor))
        before = _cpu([process, *farm])
        client = time.process_time()
        run, makespan = asyncio.run(_measure(address, todo, folder / "log"))
        client = time.process_time() - client
        of_scheduler, *of_farm = [new - old for new, old in zip(_cpu([process, *farm]), before, strict=True)]
        show(run, makespan, factor, options)
        _process("scheduler", of_scheduler, makespan, len(run.tasks), _peak(process.pid))
        _process("client", client, makespan, len(run.tasks), _peak(os.getpid()))
        _process("workers", sum(of_farm), makespan, len(run.tasks), sum(_peak(its.pid) for its in farm))
        print(f"machine: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; its other programs compete with these")


def _process(name: str, cpu: float, makespan: float, tasks: int, peak: float) -> None:
    share = f"{1000 * cpu / tasks:.2f} ms of CPU per task, {cpu / makespan:.0%} of one core"
    print(f"{name:10} {share}; {peak:.2f} GB at its peak")


def _peak(pid: int) -> float:
    """Most gigabytes of memory that a process has had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e6


async def _measure(address: str, todo: Sequence[Job], log: Path) -> tuple[Run, float]:
    function = cast("Callable[..., WorkerAnswer]", sleep_for)
    async with Cluster(address, patience=600, on_stage=lambda *_: None, function=function) as cluster:
        began = time.monotonic()
        run = await run_all(cluster, todo, log)
        return run, time.monotonic() - began


def show(run: Run, makespan: float, factor: float, options: argparse.Namespace) -> None:
    """Print what does not depend on processes."""
    tasks = len(run.tasks)
    print(
        f"{options.builds} builds, {tasks - options.builds} proofs, {options.workers} workers; seconds x {factor:.4f}"
    )
    for sentence, count in run.failures.items():
        print(f"FAILED {count} times: {sentence}")
    bounds = {name: seconds * factor for name, seconds in lower_bounds(run, options.workers).items()}
    bound = max(bounds.values())
    print(f"makespan {makespan:.1f} s, lower bound {bound:.1f} s: {makespan / bound if bound else 0:.3f} x")
    for name, seconds in sorted(bounds.items(), key=lambda item: -item[1])[:5]:
        print(f"  {seconds:8.1f} s  {name}")
    print(f"wall time per task {1000 * makespan / tasks:.2f} ms; {1000 * (makespan - bound) / tasks:.2f} ms too much")


def _cpu(processes: Sequence[psutil.Process]) -> list[float]:
    return [times.user + times.system for times in (process.cpu_times() for process in processes)]


if __name__ == "__main__":
    main()
