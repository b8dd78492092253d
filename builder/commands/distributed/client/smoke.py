"""`buildfarm smoke --scheduler`: the checks of each wheel in each cell are a task of Dask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder.commands.distributed.client.jobs import TaskLines, run_jobs
from builder.commands.distributed.client.prove import CellChecks, basis_text
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.options import RemoteOptions
from builder.commands.distributed.parcel import packed
from builder.commands.distributed.protocol import CheckTask, SentWheel
from builder.commands.run_settings import RunSettings
from builder.commands.smoke_targets import SmokeTarget
from builder.gate.outcome import Answer as GateAnswer
from builder.matrix.axes import Cell
from builder.progress.display import Progress
from builder.proof import Proof
from builder.store import Store

#: Takes the proofs of a wheel in a cell, and the answer of the op gate where there is one; returns the outcome as text.
Keep = Callable[[SmokeTarget, Cell, Sequence[Proof], GateAnswer | None], str]


def smoke_on_workers(
    options: RemoteOptions,
    settings: RunSettings,
    store: Store,
    targets: Sequence[SmokeTarget],
    progress: Progress,
    keep: Keep,
) -> None:
    """Test each wheel in each of its cells on workers; `keep` is called once for each, when its checks have ended.

    Raises UnreachableError when the scheduler does not answer, and KeyboardInterrupt after a signal.
    """
    lines = TaskLines(progress)
    settings = replace(settings, matrix=replace(settings.matrix, extensions=()))

    async def one(cluster: Cluster, target: SmokeTarget, parts: Mapping[str, bytes], cell: Cell) -> None:
        name, log = f"{target.wheel.name} in {cell}", store.log(f"smoke-{target.wheel.name}-{cell}")
        log.write_bytes(b"")
        lines.expect(name)
        wheel = SentWheel(target.wheel.name, target.sha256, target.wheel.stat().st_size)
        task = CheckTask(wheel, target.recipe, cell, settings, basis_text(target.recipe), again=True)
        earlier = await asyncio.to_thread(store.proofs, target.sha256)
        proofs, answers = await CellChecks(task, target.wheel, parts, options.prove_on, earlier, log).run(cluster)
        gates = [answer.gate for answer in answers if answer.gate is not None]
        # The outcomes of one GPU model say nothing about another.
        lines.finish(name, keep(target, cell, proofs, gates[0] if len(gates) == 1 else None))

    async def jobs(cluster: Cluster) -> list[Coroutine[Any, Any, None]]:
        found: list[Coroutine[Any, Any, None]] = []
        for target in targets:
            parts = packed(target.recipe, settings.matrix.path, store, source=False)
            found += [one(cluster, target, parts, cell) for cell in target.cells]
        return found

    run_jobs(options, lines.stage, jobs)
