"""The processes of tasks end when nobody waits for their task, and run again when somebody waits again."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from distributed import Client

from builder.commands.distributed.protocol import WorkerAnswer
from builder.commands.distributed.worker import service
from builder.commands.distributed.worker.service import Service, run_task
from tests.conftest import PATIENCE
from tests.unit.commands.distributed.made_up import BUILD_TASK, workers

# Dask warns on a busy machine.
pytestmark = pytest.mark.filterwarnings("ignore:Creating scratch directories")

#: Stands for the program that runs a task: it notes its start, waits while a file exists, and answers. Another file
#: delays the effect of SIGTERM.
PROGRAM = """\
import os, signal, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
from builder.commands.distributed.protocol import WorkerAnswer
channel, folder = Connection(int(sys.argv[2])), Path(sys.argv[1])
def end(number, frame):
    while (folder / "ending").exists():
        time.sleep(0.02)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, end)
channel.recv()
(folder / f"run-{os.getpid()}").touch()
while (folder / "hold").exists():
    time.sleep(0.02)
channel.send(WorkerAnswer(reused=True))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files hold the programs of tasks."""
    monkeypatch.setattr(service, "PROGRAM", (sys.executable, "-c", PROGRAM, str(tmp_path)))
    monkeypatch.setattr(service, "SECONDS_TO_END", PATIENCE)
    (tmp_path / "hold").touch()
    return tmp_path


def on_a_worker(folder: Path, scenario: Callable[[Client, Service], Awaitable[None]]) -> None:
    """Run a scenario with a client of a real scheduler that has one worker."""

    async def run() -> None:
        async with (
            workers(folder, "machine") as (address, (plugin,)),
            Client(address, asynchronous=True, set_as_default=False) as client,  # type: ignore[no-untyped-call]
        ):
            await scenario(client, plugin)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not condition():
        await asyncio.sleep(0.02)


def runs(folder: Path) -> int:
    return len(list(folder.glob("run-*")))


def test_a_task_that_nobody_waits_for_is_ended(folder: Path) -> None:
    async def scenario(client: Client, plugin: Service) -> None:
        future = client.submit(run_task, BUILD_TASK, key="key")
        await until(lambda: runs(folder) == 1)
        await future.cancel()  # type: ignore[no-untyped-call]
        await until(lambda: not plugin._running)
        (folder / "hold").unlink()
        answer = await client.submit(run_task, BUILD_TASK, key="key")  # an earlier end does not end the next run
        assert answer == WorkerAnswer(answer.worker, "machine", reused=True)
        assert runs(folder) == 2

    on_a_worker(folder, scenario)


def test_a_task_is_ended_also_when_its_process_has_not_started_yet(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: Client, plugin: Service) -> None:
        with plugin._lock:  # keeps the process from its start
            future = client.submit(run_task, BUILD_TASK, key="key")
            tasks = plugin._worker.state.tasks
            await until(lambda: "key" in tasks and tasks["key"].state == "executing")
            await asyncio.sleep(0.1)
            with monkeypatch.context() as context:
                context.setattr(plugin, "_end", lambda _: None)  # it would wait for the lock
                await future.cancel()  # type: ignore[no-untyped-call]
                await until(lambda: "key" not in tasks or tasks["key"].state == "cancelled")
        await until(lambda: not plugin._running and "key" not in tasks)

    on_a_worker(folder, scenario)


def test_a_task_that_is_wanted_again_while_it_ends_runs_again(folder: Path) -> None:
    async def scenario(client: Client, plugin: Service) -> None:
        (folder / "ending").touch()
        future = client.submit(run_task, BUILD_TASK, key="key")
        await until(lambda: runs(folder) == 1)
        await future.cancel()  # type: ignore[no-untyped-call]
        await until(lambda: bool(plugin._ended))
        again = client.submit(run_task, BUILD_TASK, key="key")
        await asyncio.sleep(0.2)
        (folder / "ending").unlink()
        await until(lambda: runs(folder) == 2)
        (folder / "hold").unlink()
        assert (await again).reused

    on_a_worker(folder, scenario)
