"""One connection to a scheduler from its start to its end, with the signals that end the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

from builder.commands.distributed.cluster.cluster import Cluster
from builder.commands.distributed.options import RemoteOptions
from builder.log import print_line

#: What a client does with workers: from the connection to the jobs that run together.
Jobs = Callable[[Cluster], Awaitable[Sequence[Coroutine[Any, Any, None]]]]


def run_jobs(options: RemoteOptions, on_stage: Callable[[str, str, str], None], jobs: Jobs) -> None:
    """Connect to the scheduler and run the jobs together; `on_stage` is as in `Cluster`.

    Raises UnreachableError when the scheduler does not answer, what a job raises, and KeyboardInterrupt after a signal:
    the workers have been told to end their tasks then.
    """
    asyncio.run(_run(options, on_stage, jobs))


async def _run(options: RemoteOptions, on_stage: Callable[[str, str, str], None], jobs: Jobs) -> None:
    main = cast("asyncio.Task[None]", asyncio.current_task())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, main.cancel)
    try:
        async with Cluster(options.scheduler, patience=options.patience, on_stage=on_stage) as cluster:
            if cluster.dashboard:
                print_line(f"Dask's dashboard: {cluster.dashboard}")
            tasks = [asyncio.create_task(job) for job in await jobs(cluster)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
