"""The run of `buildfarm worker`: Dask workers with buildfarm's plugin, which offer what this machine has."""

import asyncio
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from distributed import Nanny
from distributed.security import Security

from builder.commands.distributed import connection, protocol
from builder.commands.distributed.options import WorkerOptions
from builder.commands.distributed.worker.service import Service
from builder.commands.folders import open_store
from builder.errors import Code, MissingToolError
from builder.gate.amounts import counted
from builder.gate.system.nvidia import smi
from builder.images.container import SDK_ERRORS
from builder.images.engine import Engine
from builder.images.network import is_loopback
from builder.log import print_line
from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat
from builder.resources import SPARE_MEMORY, measure_resources
from builder.wheels.toolchain.machine import find_host_compiler, find_toolkit

#: Cores for each build that runs at the same time, unless the worker is told another number.
CORES_PER_BUILD = 4
#: Seconds between two attempts to reach the scheduler.
RETRY_SECONDS = 1.0
#: Seconds in which a worker that is not connected must close.
CLOSE_SECONDS = 5.0


def run_worker(options: WorkerOptions) -> None:
    """Run until a signal ends the worker.

    Raises UsageError for the options, and MissingToolError when the scheduler does not answer in time, or ends.
    """
    connection.check_address(options.scheduler, plain_tcp=options.plain_tcp, option="ADDRESS")
    connection.quiet_dask()
    asyncio.run(_run(options))


async def _run(options: WorkerOptions) -> None:
    """Be a worker until a signal; raises MissingToolError if the scheduler ends before."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = open_store(options.store, run=False)
    security = connection.security_for(options.scheduler, "worker")
    name = options.name or socket.gethostname()
    host = options.host or ("127.0.0.1" if is_loopback(urlsplit(options.scheduler).hostname or "") else None)
    if not await _reached(options.scheduler, security, options.wait, stop):
        return
    facts = await asyncio.to_thread(measure, name, builds=options.builds)
    print_line("\n".join(facts.lines(store.root)))
    # Dask's files are below this folder. Its lock keeps it from `clear_abandoned`, while this process lives.
    with store.work(f"dask-{os.getpid()}") as scratch:
        nannies = [
            Nanny(
                options.scheduler,
                nthreads=int(resources[kind]),
                name=f"{name}-{store.owner('')[:6]}-{kind}",
                host=host,
                security=security,
                resources=resources,
                memory_limit=0,  # a task's memory is that of its own process
                local_directory=str(scratch),
                plugins=(Service(store.root, name, facts.jobs),),
                dashboard_address=":0" if host is None else f"{host}:0",
                silence_logs=logging.CRITICAL,
            )
            for kind, resources in facts.offers().items()
        ]
        stopped = asyncio.create_task(stop.wait())
        async with AsyncExitStack() as stack:
            starting = asyncio.gather(*(stack.enter_async_context(nanny) for nanny in nannies))
            await asyncio.wait([cast("Any", starting), stopped], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                await _give_up(nannies, starting)
                return
            await starting
            print_line(f"connected to {options.scheduler}")
            ended = [asyncio.create_task(nanny.finished()) for nanny in nannies]  # type: ignore[no-untyped-call]
            await asyncio.wait([*ended, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not stop.is_set():
        hint = "start it and this worker again; a service manager or a job system can do that"
        raise MissingToolError("lost the scheduler", Code.NETWORK_UNREACHABLE, where=options.scheduler, hints=[hint])


async def _give_up(nannies: Sequence[Nanny], starting: asyncio.Future[Any]) -> None:
    """End Dask's workers while they try to connect, which they would do for ever."""
    starting.cancel()
    for nanny in nannies:
        if nanny.pid:
            os.kill(nanny.pid, signal.SIGKILL)  # otherwise `close` waits until this process is connected
    await asyncio.wait([starting])
    for nanny in nannies:
        with suppress(TimeoutError, AssertionError):  # Dask asserts that no process ended while it started
            await asyncio.wait_for(nanny.close(), CLOSE_SECONDS)


async def _reached(address: str, security: Security, seconds: float, stop: asyncio.Event) -> bool:
    """Wait until a scheduler answers at an address, and return whether `stop` did not come first.

    Raises UnreachableError after this time; certificates that do not fit are an error at once.
    """
    deadline, said = time.monotonic() + seconds, False
    while not stop.is_set():
        try:
            await connection.reach(address, security, "worker")
            return not stop.is_set()
        except connection.UnreachableError as error:
            if error.code is Code.CERTIFICATE_NOT_USABLE or time.monotonic() >= deadline:
                raise
            if not said:
                print_line(f"waiting for the scheduler: {error}")
            said = True
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
    return False


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

    def offers(self) -> dict[str, dict[str, float]]:
        """The Dask resources of two workers: one has BUILDS, the other PROOFS, as many as threads.

        There are two because Dask counts the threads of its workers, not their resources.

        The memory of the machine is offered to both. Builds leave enough for a usual proof, if the machine has twice as
        much.
        """
        many = protocol.MANY
        common: dict[str, float] = {protocol.version_resource(): many, **({"docker": many} if self.docker else {})}
        left = self.memory - protocol.PROOF_MEMORY if self.memory >= 2 * protocol.PROOF_MEMORY else self.memory
        builds = common | {protocol.BUILDS: self.builds, protocol.MEMORY: left}
        for cuda in Compat.load().cudas:
            if str(cuda) in self.toolkits:
                builds[protocol.compile_resource("local", cuda)] = many
            if str(cuda) in self.toolkits or self.docker:
                builds[protocol.compile_resource("auto", cuda)] = many
        proofs = common | {protocol.PROOFS: 1, protocol.MEMORY: self.memory}  # one: the op gate uses every core
        proofs |= {protocol.GPU: len(self.gpus)} if self.gpus else {}
        return {protocol.BUILDS: builds, protocol.PROOFS: proofs}

    def lines(self, store: Path) -> list[str]:
        """What `buildfarm worker` prints at its start."""
        gib = 2**30
        gpus = ", ".join(f"{name} ({model})" for model, name in self.gpus) or "no GPU"
        return [
            f"worker {self.name}: buildfarm {protocol.version_text()}",
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
    engine, docker = Engine(), ""
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
