"""Which worker has a finished build, noted on the scheduler: another client that wants the build takes its wheel.

Clients that want one build at the same time share one Dask task. Dask forgets a task when the clients have its answer;
the note stays until the scheduler ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from distributed import Client

from builder.commands.distributed.protocol import Answer, BuildTask, WheelRef
from builder.commands.distributed.worker.service import find_finished

#: Where Dask's scheduler keeps the notes among its metadata.
_NOTES = "buildfarm-builds"
#: What Dask raises when the scheduler or the worker is gone, or the client is closed to connect again.
_LOST = (OSError, RuntimeError)


async def note(client: Client, task: BuildTask, answer: Answer) -> None:
    """Note the worker that made a build."""
    if answer.wheel is not None:
        with suppress(*_LOST):
            await client.set_metadata([_NOTES, task.digest], answer.worker)  # type: ignore[no-untyped-call]


async def find(client: Client, call: Callable[..., Awaitable[Any]], task: BuildTask) -> Answer | None:
    """The answer with the wheel of a build, if a worker has it; `call` is `Cluster.call`."""
    with suppress(*_LOST):
        worker = await client.get_metadata([_NOTES, task.digest], None)  # type: ignore[no-untyped-call]
        if worker is not None:
            found: Mapping[str, WheelRef] = await call(worker, find_finished, [task.digest])
            if wheel := found.get(task.digest):
                return Answer(worker, wheel=wheel, reused=True)
    return None
