"""Wheels and proofs that workers made, in the client's store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from builder.commands.distributed.client.transfer import fetch_wheel
from builder.commands.distributed.cluster.cluster import Cluster
from builder.commands.distributed.protocol import BuildTask, WheelRef
from builder.storage.finished_tasks import FinishedTasks
from builder.store import Store, StoredBuild, work_name


class Wheels:
    """The wheels of the client's store, by the task that made them."""

    def __init__(self, store: Store, scratch: Path) -> None:
        """`scratch` is a folder for files that are not complete."""
        self._store = store
        self._finished = FinishedTasks(store.root)
        self._scratch = scratch

    def known(self, task: BuildTask) -> StoredBuild | None:
        """The wheel that an earlier run got for this task, or None."""
        digest = self._finished.build_of(task.digest)
        return self._store.take(digest) if digest else None

    async def collect(self, cluster: Cluster, task: BuildTask, wheel: WheelRef) -> StoredBuild:
        """The wheel in the client's store, copied from the worker that made it; raises OSError if no worker has it."""
        stored = await asyncio.to_thread(self._store.take, wheel.digest)
        if stored is None:
            partial = self._scratch / f"{uuid4().hex}-{wheel.filename}"
            try:
                await fetch_wheel(cluster, wheel, partial)
                stored = await asyncio.to_thread(self._add, wheel, partial)
            finally:
                partial.unlink(missing_ok=True)
        self._finished.remember(task.digest, stored.digest)
        return stored

    def _add(self, wheel: WheelRef, partial: Path) -> StoredBuild:
        with self._store.work(work_name(wheel.digest)) as work:
            if stored := self._store.take(wheel.digest):
                return stored
            named = work / wheel.filename
            partial.rename(named)
            return self._store.add(wheel.digest, named, wheel.record)
