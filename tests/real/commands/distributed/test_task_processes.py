"""Workers: processes of tasks that nobody waits for, and the certificates and the compose file of the documentation."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from distributed import Client
from distributed.comm.core import connect, listen
from distributed.security import Security

from builder.commands.distributed.protocol import WorkerAnswer
from builder.commands.distributed.worker import service
from builder.commands.distributed.worker.service import Service, run_task
from tests.conftest import PATIENCE, lacking
from tests.unit.commands.distributed.made_up import BUILD_TASK, workers
from tests.unit.commands.distributed.test_scheduler import FILES, block

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


def certificates(folder: Path) -> None:
    """Run the page's commands of openssl."""
    if not shutil.which("openssl"):
        lacking("openssl is not there")
    subprocess.run(["bash", "-e", "-c", block("openssl req -x509")], cwd=folder, check=True, capture_output=True)


def security_of(folder: Path, machine: str) -> Security:
    """Dask's settings from the file that the page shows, with the files of this machine."""
    text = block("distributed:").replace("/etc/buildfarm/machine", str(folder / machine))
    settings = yaml.safe_load(text.replace("/etc/buildfarm", str(folder)))
    with dask.config.set(dask.config.merge(dask.config.config, settings)):
        return Security()  # type: ignore[no-untyped-call]


async def said(server: Security, client: Security) -> object:
    """What a client's message becomes that goes to a scheduler and back."""

    async def answer(comm: Any) -> None:
        await comm.write(("heard", await comm.read()))

    async with listen("tls://127.0.0.1:0", answer, **server.get_listen_args("scheduler")) as listener:  # type: ignore[no-untyped-call]
        comm = await connect(listener.contact_address, timeout=PATIENCE, **client.get_connection_args("client"))  # type: ignore[no-untyped-call]
        await comm.write("hello")
        heard = await asyncio.wait_for(comm.read(), PATIENCE)
        await comm.close()
        return heard


def test_the_certificates_of_the_page_connect_machines_and_no_others(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        certificates(folder)
    scheduler = security_of(ours, "machine1")
    assert scheduler.require_encryption
    assert asyncio.run(said(scheduler, security_of(ours, "laptop"))) == ("heard", "hello")
    with pytest.raises(OSError, match=r"(?i)certificate|handshake|closed|alert"):
        asyncio.run(said(scheduler, security_of(theirs, "laptop")))


def test_compose_file_fits_its_schema() -> None:
    program = Path(sys.executable).parent / "check-jsonschema"
    if not program.is_file():
        lacking("check-jsonschema is not there")
    argv = [str(program), "--builtin-schema", "vendor.compose-spec", str(FILES / "compose.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
