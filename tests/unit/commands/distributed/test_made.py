"""A client takes the wheel of a build that another client let a worker make, on a real scheduler and worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

from distributed import Scheduler, Worker, get_worker

from builder.commands.distributed.cluster import Cluster, Need
from builder.commands.distributed.protocol import BUILDS, MANY, Answer, BuildTask, WheelRef, version_resource
from builder.commands.distributed.worker.facts import WorkerFacts
from builder.commands.distributed.worker.service import Service
from builder.storage.runs import FinishedTasks
from builder.store import Store, work_name
from tests.unit.commands.distributed.made_up import BUILD_TASK
from tests.unit.wheels.make_record import build_record

DIGEST = "d" * 64
FACTS = WorkerFacts("machine", "version", cores=1, memory=2**30, free_disk=2**30, builds=1, jobs=1)


#: The builds that ran, by the address of a worker in this process.
MADE: dict[str, list[str]] = {}


def build(task: BuildTask) -> Answer:
    """What the worker runs in place of a build: it puts a wheel into its store."""
    worker = get_worker()
    MADE[worker.address].append(task.digest)
    store = Store(cast("Service", worker.plugins["buildfarm"])._root)
    wheel = store.root / "ops-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    with store.work(work_name(DIGEST)):
        stored = store.add(DIGEST, wheel, build_record())
    FinishedTasks(store.root).remember(task.digest, DIGEST)
    return Answer(worker.address, "machine", wheel=WheelRef.of(stored))


def computed_by_two_clients(folder: Path, between: Callable[[Store], None]) -> tuple[list[str], list[Answer]]:
    """The builds that ran, and the answers, when one client after the other wanted the same."""
    made: list[str] = []
    answers: list[Answer] = []

    async def scenario() -> None:
        store = Store(folder)
        offer = {BUILDS: 1.0, version_resource(): float(MANY)}
        async with (
            Scheduler(port=0, dashboard=False, dashboard_address="127.0.0.1:0", host="127.0.0.1") as scheduler,
            Worker(
                scheduler.address,
                nthreads=1,
                memory_limit=0,
                dashboard=False,
                host="127.0.0.1",
                resources=offer,
                plugins=(Service(folder, FACTS),),
            ) as worker,
        ):
            MADE[worker.address] = made
            for _ in range(2):
                address = cast("str", scheduler.address)
                async with Cluster(address, patience=20, on_stage=lambda *_: None, function=build) as client:
                    answers.append(await client.compute(BUILD_TASK, {}, Need({BUILDS: 1})))
                between(store)

    asyncio.run(scenario())
    return made, answers


def test_a_build_that_another_client_got_does_not_run_again(tmp_path: Path) -> None:
    made, (first, second) = computed_by_two_clients(tmp_path, lambda _: None)
    assert made == [BUILD_TASK.digest]
    assert not first.reused
    assert second.reused
    assert first.wheel
    assert second.wheel
    assert (second.worker, second.wheel.digest, second.wheel.holders) == (first.worker, DIGEST, (first.worker,))


def test_a_build_whose_wheel_is_gone_runs_again(tmp_path: Path) -> None:
    made, (_, second) = computed_by_two_clients(
        tmp_path, lambda store: (store.root / "remote" / f"{BUILD_TASK.digest}.json").unlink()
    )
    assert made == [BUILD_TASK.digest] * 2
    assert second.wheel
