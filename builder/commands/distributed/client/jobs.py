"""What runs of `build` and `smoke` on workers share: the connection with its end, and the lines of the progress."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.options import RemoteOptions
from builder.progress.display import Progress

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
            tasks = [asyncio.create_task(job) for job in await jobs(cluster)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class TaskLines:
    """A line of the progress for each task that a worker runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._expected: set[str] = set()  # those that end with an outcome
        self._shown: set[str] = set()

    def expect(self, name: str) -> None:
        """Keep the line of this name until `finish`; other lines end with their task."""
        self._expected.add(name)

    def stage(self, name: str, machine: str, stage: str) -> None:
        """Show what a worker does for a task; an empty stage is the end of the task."""
        if stage and name not in self._shown:
            self._shown.add(name)
            self._progress.start(name)
        if stage:
            self._progress.stage(name, stage.partition(" in torch")[0], machine)
        elif name in self._shown - self._expected:
            self._end(name, "")

    def finish(self, name: str, outcome: str) -> None:
        """Show the outcome of an expected line."""
        if name not in self._shown:
            self._progress.start(name)
        self._expected.discard(name)
        self._end(name, outcome)

    def _end(self, name: str, outcome: str) -> None:
        self._shown.discard(name)
        self._progress.finish(name, outcome)
