"""The proofs of one wheel on workers: a task for each cell, and for each GPU model that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.commands.distributed.client.models import merge_models, on_models, usable
from builder.commands.distributed.client.placement import need_of_proof
from builder.commands.distributed.client.transfer import fetch_log, send_wheel
from builder.commands.distributed.cluster.cluster import Cluster
from builder.commands.distributed.protocol import Answer, ProofTask, Settings, SmokeTask, WheelRef
from builder.hashing import digest_of
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.proof import Check, Proof
from builder.proofs.cells.prover import CELL_CHECKS, Subject, cell_basis, timed_out
from builder.publish.gpu_models import models_of

#: How often a proof is tried when no worker has its wheel.
ATTEMPTS = 3


@dataclass(frozen=True)
class ProofPlan:
    """What the proofs of one wheel need."""

    #: build, recipe, settings: as in `ProofTask`.
    build: Build
    recipe: Recipe
    settings: Settings
    #: The wheel.
    wheel: WheelRef
    #: Its file in the client's store.
    path: Path
    #: The files of the recipe.
    parts: Mapping[str, bytes]
    #: The GPU models on which each cell is tested; empty: any worker.
    gpus: tuple[str, ...]
    #: Proofs of the wheel that the store has.
    earlier: tuple[Proof, ...]
    #: Whether checks that are decided run again.
    again: bool
    #: The client's log of the build.
    log: Path


def open_cells(proofs: Sequence[Proof], subject: Subject, gpus: Sequence[str], *, again: bool) -> list[Cell]:
    """The cells with a check that another machine could decide.

    `proofs` are those of the store, `gpus` the GPU models that were asked for, and `again` is whether every check runs
    again.
    """
    basis = cell_basis(subject.recipe)
    known = {(p.cell, p.check): p for p in proofs}

    def is_open(cell: Cell, check: Check) -> bool:
        proof = known.get((cell, check))
        if again or proof is None or proof.basis != basis[check] or timed_out(proof):
            return True
        if check.on_gpu and gpus:
            return bool(_open_models(proof, gpus))
        return not proof.has_run and not proof.evidence.get("settled")

    return [cell for cell in subject.claim.cells if any(is_open(cell, check) for check in CELL_CHECKS)]


def _open_models(proof: Proof, gpus: Sequence[str]) -> list[str]:
    """The GPU models on which a check is not decided."""
    models = models_of(proof)
    return [gpu for gpu in gpus if gpu not in models or not models[gpu].decided]


async def prove_cells(cluster: Cluster, plan: ProofPlan, cells: Sequence[Cell]) -> dict[Cell, tuple[Proof, ...]]:
    """The proofs of each cell; "not run" with the reason where no worker can run them."""
    made = await asyncio.gather(*(_prove_cell(cluster, plan, cell) for cell in cells))
    return dict(zip(cells, made, strict=True))


async def _prove_cell(cluster: Cluster, plan: ProofPlan, cell: Cell) -> tuple[Proof, ...]:
    basis = cell_basis(plan.recipe)
    earlier = usable(plan.earlier, cell, basis)
    missing = {proof.check: proof for proof in earlier if proof.check.on_gpu}
    gpus = plan.gpus
    if not plan.again and missing.keys() == {check for check in CELL_CHECKS if check.on_gpu}:
        gpus = tuple(gpu for gpu in gpus if any(_open_models(proof, [gpu]) for proof in missing.values()))
    name = digest_of({str(check): digest for check, digest in basis.items()})

    async def run(gpu: str) -> Answer:
        task = ProofTask(plan.wheel, plan.build, plan.recipe, cell, plan.settings, name, gpu, plan.again)
        answer = await compute_with_wheel(cluster, task, plan.parts, plan.path)
        await fetch_log(cluster, answer, plan.log)
        return answer

    by_model, _ = await on_models(gpus, run, plan.wheel.sha256, cell)
    return merge_models(by_model, earlier)


async def compute_with_wheel(
    cluster: Cluster, task: ProofTask | SmokeTask, parts: Mapping[str, bytes], path: Path
) -> Answer:
    """Let a worker run checks; send it the wheel, which is at `path`, if no other worker has it."""
    first = task
    for attempt in range(ATTEMPTS):
        if attempt:  # another task: Dask does not run a finished key again
            task = replace(task, basis=f"{first.basis}-{attempt}")
        answer = await cluster.compute(task, parts, need_of_proof(task))
        if not answer.no_wheel:
            break
        try:
            await send_wheel(cluster, answer.worker, task.wheel, path)
        except (OSError, ValueError):
            continue
        task = _held_by(task, answer.worker)
    return answer


def _held_by(task: ProofTask | SmokeTask, worker: str) -> ProofTask | SmokeTask:
    """The task, with a worker that has its wheel."""
    if isinstance(task, ProofTask):
        return replace(task, wheel=replace(task.wheel, holders=(worker,)))
    return replace(task, wheel=replace(task.wheel, holders=(worker,)))
