"""Files between the client's store and workers, in parts of 4 MiB: the scheduler passes them on, one part at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import Answer, WheelFile
from builder.commands.distributed.worker.service import CHUNK, place_of, read_file, write_file, write_parts

#: How many files move at the same time.
_MOVES = asyncio.Semaphore(4)


async def fetch_wheel(cluster: Cluster, wheel: WheelFile, target: Path) -> None:
    """Copy a wheel from the first worker that still has it.

    Raises OSError when no worker has it, or sends other bytes.
    """
    for holder in wheel.holders:
        with suppress(OSError, ValueError):
            async with _MOVES:
                await write_parts(wheel, target, partial(cluster.call, holder, read_file, "wheel", place_of(wheel)))
            return
    raise OSError(f"no worker has {wheel.filename} any more")


async def fetch_log(cluster: Cluster, answer: Answer, target: Path) -> None:
    """Append the log of a task to a file; without it if the worker is gone."""
    name, size = answer.log
    try:
        with target.open("ab") as stream:
            offset = 0
            while offset < size:
                data = await cluster.call(answer.worker, read_file, "log", name, offset)
                if not data:
                    break
                stream.write(data[: size - offset])
                offset += len(data)
    except (OSError, ValueError):
        return


async def send_wheel(cluster: Cluster, address: str, wheel: WheelFile, path: Path) -> None:
    """Copy a wheel of the client's store to one worker; raises OSError when the worker is gone."""
    async with _MOVES:
        with path.open("rb") as stream:
            for offset in range(0, wheel.size, CHUNK):
                data = await asyncio.to_thread(stream.read, CHUNK)
                last = wheel.sha256 if offset + len(data) >= wheel.size else ""
                await cluster.call(address, write_file, place_of(wheel), offset, data, last)
