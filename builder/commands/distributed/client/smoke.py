"""`buildfarm smoke --scheduler`: the checks of each wheel in each cell are a task of Dask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder.commands.distributed.client.prove import compute_with_wheel, merge_models, on_models, usable
from builder.commands.distributed.client.run import run_jobs
from builder.commands.distributed.client.transfer import fetch_log
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.options import RemoteOptions
from builder.commands.distributed.parcel import locks_in, named, pack
from builder.commands.distributed.protocol import NO_BUILD, Answer, SmokeTask, WheelFile
from builder.commands.run_settings import Settings
from builder.commands.smoke_targets import SmokeTarget
from builder.gate.outcome import Answer as GateAnswer
from builder.hashing import digest_of
from builder.images.registry.lock import lock_path
from builder.matrix.axes import Cell
from builder.progress.display import Progress
from builder.proof import Proof
from builder.proofs.cells.prover import cell_basis
from builder.store import Store

#: Takes the proofs of a wheel in a cell, and the answer of the op gate where there is one; returns the outcome as text.
Keep = Callable[[SmokeTarget, Cell, Sequence[Proof], GateAnswer | None], str]


class RemoteSmoke:
    """Tests wheel files in their cells on workers."""

    def __init__(
        self, store: Store, settings: Settings, options: RemoteOptions, progress: Progress, keep: Keep
    ) -> None:
        """`keep` is called once for each wheel and cell, when its checks have ended, one call at a time."""
        self._store = store
        self._settings = replace(settings, matrix=replace(settings.matrix, extensions=()))
        self._options = options
        self._progress = progress
        self._keep = keep
        self._parcels: dict[int, Mapping[str, bytes]] = {}
        self._open: set[str] = set()  # names of cells whose checks have not ended
        self._shown: set[str] = set()

    def run(self, targets: Sequence[SmokeTarget]) -> None:
        """Test each wheel in each of its cells.

        Raises UnreachableError when the scheduler does not answer, and KeyboardInterrupt after a signal.
        """
        self._open = {_name(target, cell) for target in targets for cell in target.cells}

        async def jobs(cluster: Cluster) -> list[Coroutine[Any, Any, None]]:
            return [self._one(cluster, target, cell) for target in targets for cell in target.cells]

        run_jobs(self._options, self._stage, jobs)

    async def _one(self, cluster: Cluster, target: SmokeTarget, cell: Cell) -> None:
        name, log = _name(target, cell), self._store.log(f"smoke-{target.wheel.name}-{cell}")
        log.write_bytes(b"")
        basis = cell_basis(target.recipe)
        digest = digest_of({str(check): each for check, each in basis.items()})
        wheel = WheelFile(NO_BUILD, target.wheel.name, target.sha256, target.wheel.stat().st_size)
        parts = self._parts(target)

        async def run(gpu: str) -> Answer:
            task = SmokeTask(wheel, target.recipe, cell, self._settings, digest, gpu)
            answer = await compute_with_wheel(cluster, task, parts, target.wheel)
            await fetch_log(cluster, answer, log)
            return answer

        earlier = await asyncio.to_thread(self._store.proofs, target.sha256)
        by_model, answers = await on_models(self._options.prove_on, run, target.sha256, cell)
        proofs = merge_models(by_model, usable(earlier, cell, basis))
        gates = [answer.gate for answer in answers if answer.gate is not None]
        # The outcomes of one GPU model say nothing about another.
        outcome = self._keep(target, cell, proofs, gates[0] if len(gates) == 1 else None)
        self._open.discard(name)
        if name not in self._shown:
            self._progress.start(name)
        self._shown.discard(name)
        self._progress.finish(name, outcome)

    def _parts(self, target: SmokeTarget) -> Mapping[str, bytes]:
        """The files of a recipe that the checks need; its source is not among them."""
        if id(target) not in self._parcels:
            locks = locks_in(self._store.root / "envs")
            parts = pack(target.recipe, lock_path(self._settings.matrix.path), locks, source=False)
            self._parcels[id(target)] = dict(named(parts))
        return self._parcels[id(target)]

    def _stage(self, title: str, machine: str, stage: str) -> None:
        """Show what a worker does for a wheel in a cell; each GPU model has a line of its own."""
        name = title.partition(" on sm_")[0]
        if name not in self._open:
            return
        if stage:
            if title not in self._shown:
                self._shown.add(title)
                self._progress.start(title)
            self._progress.stage(title, stage.partition(" in torch")[0], machine)
        elif title != name and title in self._shown:
            self._shown.discard(title)
            self._progress.finish(title, "")


def _name(target: SmokeTarget, cell: Cell) -> str:
    return f"{target.wheel.name} in {cell}"
