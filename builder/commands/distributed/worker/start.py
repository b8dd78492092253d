"""`buildfarm worker`: Dask workers with buildfarm's plugin."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, cast
from urllib.parse import urlsplit

from distributed import Nanny
from distributed.security import Security

from builder.commands.distributed import connection
from builder.commands.distributed.options import WorkerOptions
from builder.commands.distributed.worker.facts import measure
from builder.commands.distributed.worker.service import Service
from builder.commands.folders import open_store
from builder.errors import Code, MissingToolError
from builder.images.network import is_loopback
from builder.log import print_line

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
                nthreads=offer.threads,
                name=f"{name}-{store.owner('')[:6]}-{offer.kind}",
                host=host,
                security=security,
                resources=offer.resources,
                memory_limit=0,  # a task's memory is that of its own process
                local_directory=str(scratch),
                plugins=(Service(store.root, facts),),
                dashboard_address=":0" if host is None else f"{host}:0",
                silence_logs=logging.CRITICAL,
            )
            for offer in facts.offers()
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
