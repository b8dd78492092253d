"""Files between the client's store and workers, in parts of 4 MiB: the scheduler passes them on, one part at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import SentWheel, WorkerAnswer
from builder.commands.distributed.worker.service import CHUNK, place_of

#: How many wheels move at the same time.
_MOVES = asyncio.Semaphore(4)


async def fetch_wheel(cluster: Cluster, worker: str, wheel: SentWheel, target: Path) -> None:
    """Copy a wheel from a worker; raises OSError when the worker does not have it any more, or sends other bytes."""
    digest = hashlib.sha256()
    async with _MOVES:
        with target.open("wb") as stream:
            async for data in _read(cluster, worker, "wheel", place_of(wheel), wheel.size):
                await asyncio.to_thread(stream.write, data)
                digest.update(data)
    if digest.hexdigest() != wheel.sha256:
        raise OSError(wheel.filename)


async def fetch_log(cluster: Cluster, answer: WorkerAnswer, target: Path) -> None:
    """Append the log of a task to a file; without it if the worker is gone."""
    with suppress(OSError), target.open("ab") as stream:
        async for data in _read(cluster, answer.worker, "log", *answer.log):
            stream.write(data)


async def _read(cluster: Cluster, worker: str, kind: str, name: str, size: int) -> AsyncIterator[bytes]:
    """A file of a worker in parts, up to a size in bytes; raises OSError when the worker is gone."""
    offset = 0
    while offset < size and (data := await cluster.call(worker, "read", kind, name, offset)):
        yield data[: size - offset]
        offset += len(data)


async def send_wheel(cluster: Cluster, worker: str, wheel: SentWheel, path: Path) -> None:
    """Copy a wheel of the client to one worker; raises OSError when the worker is gone."""
    async with _MOVES:
        with path.open("rb") as stream:
            for offset in range(0, wheel.size, CHUNK):
                data = await asyncio.to_thread(stream.read, CHUNK)
                last = wheel.sha256 if offset + len(data) >= wheel.size else ""
                await cluster.call(worker, "write", place_of(wheel), offset, data, last)
