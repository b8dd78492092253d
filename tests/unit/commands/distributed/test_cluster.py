"""A client and the workers of a real scheduler: which of them try a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import get_worker

from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import BuildTask, CheckTask, Needs, WorkerAnswer
from builder.commands.distributed.worker.service import run_task
from builder.errors import BuildfarmError, Code
from tests.conftest import PATIENCE
from tests.refused import refused
from tests.unit.commands.distributed.made_up import BUILD_TASK, PROOF_TASK, SETTINGS, workers

# Dask warns on a busy machine.
pytestmark = pytest.mark.filterwarnings("ignore:Creating scratch directories")


def on_workers(
    folder: Path,
    names: str,
    scenario: Callable[[Cluster], None],
    function: Callable[..., WorkerAnswer] = run_task,
    patience: float = 20,
    needs: Needs | None = None,
) -> None:
    """Run a scenario with workers of these names; `function` is what they do in place of a task."""

    def in_a_thread(address: str) -> None:
        cluster = Cluster(address, patience=patience, on_stage=lambda *_: None, function=function)
        try:
            scenario(cluster)
        finally:
            cluster.close()

    async def run() -> None:
        async with workers(folder, *names.split(), needs=needs) as (address, _):
            await asyncio.to_thread(in_a_thread, address)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def build(_: BuildTask) -> WorkerAnswer:
    """What workers do in place of a build: only `good` has space on its disk."""
    worker = get_worker()
    full = BuildfarmError("the disk is full", Code.DISK_FULL)
    if worker.name == "good":
        return WorkerAnswer(worker.address, "good")
    return WorkerAnswer(worker.address, str(worker.name), full, machine_fault=True)


def test_another_worker_gets_what_the_first_cannot_run(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        answer = cluster.compute(BUILD_TASK, {})
        assert (answer.machine, answer.error) == ("good", None)

    on_workers(tmp_path, "w1 good w2", scenario, build)


def test_three_workers_try_a_task(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        answer = cluster.compute(BUILD_TASK, {})
        assert isinstance(answer.error, BuildfarmError)
        assert answer.error.code == Code.DISK_FULL
        assert str(answer.error).startswith("no worker could run this build: ")
        assert str(answer.error).count(": the disk is full") == 3

    on_workers(tmp_path, "w1 w2 w3 w4", scenario, build)


def test_only_one_worker_gets_a_task_while_it_is_there(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        answers = [cluster.compute(BUILD_TASK, {}, only=address) for address in cluster._workers]
        assert {answer.worker for answer in answers} == set(cluster._workers)
        assert cluster.compute(BUILD_TASK, {}, only="tcp://127.0.0.1:1").worker in cluster._workers

    on_workers(tmp_path, "w1 w2", scenario, lambda _: WorkerAnswer(get_worker().address))


def test_a_task_that_no_worker_can_run_ends_after_a_while(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        in_docker = replace(BUILD_TASK, settings=replace(SETTINGS, executor="docker"))
        assert str(cluster.compute(in_docker, {}).error) == "no worker can run this build: w1 has no Docker"

    on_workers(tmp_path, "w1", scenario, build, patience=0)


def test_a_scheduler_that_does_not_come_back(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        cluster.close()  # Dask's client does this when it gives up
        with refused(Code.NETWORK_UNREACHABLE, "did not come back"):
            cluster.compute(BUILD_TASK, {})

    on_workers(tmp_path, "w1", scenario, build)


def test_checks_go_to_the_workers_with_a_gpu(tmp_path: Path) -> None:
    def checks(_: CheckTask) -> WorkerAnswer:
        worker = get_worker()
        fault = worker.name == "gpu" and (tmp_path / "full").exists()
        error = BuildfarmError("the disk is full", Code.DISK_FULL) if fault else None
        return WorkerAnswer(worker.address, str(worker.name), error, machine_fault=fault)

    def scenario(cluster: Cluster) -> None:
        again = [replace(PROOF_TASK, basis=str(number)) for number in range(5)]
        assert cluster.has_gpu()
        assert {cluster.compute(task, {}).machine for task in again[:4]} == {"gpu"}
        (tmp_path / "full").touch()
        assert cluster.compute(again[4], {}).machine in {"w1", "w2"}

    on_workers(tmp_path, "w1 gpu w2", scenario, checks, needs=PROOF_TASK.needs)
