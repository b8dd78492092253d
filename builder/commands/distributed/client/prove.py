"""The proofs of one wheel on workers: a task for each cell, and for each GPU model that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.commands.distributed.client.placement import need_of_proof
from builder.commands.distributed.client.transfer import fetch_log, send_wheel
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import Answer, ProofTask, SmokeTask, WheelRef
from builder.commands.run_settings import Settings
from builder.hashing import digest_of
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.proof import Check, Proof, Verdict, now
from builder.proofs.cells.cell_run import not_run_in_cell
from builder.proofs.cells.prover import CELL_CHECKS, Subject, cell_basis, timed_out
from builder.publish.gpu_models import KEY, OnModel, models_of

# One verdict for each check of a cell from its verdicts on several GPU models.


async def on_models(
    models: Sequence[str], run: Callable[[str], Awaitable[Answer]], sha256: str, cell: Cell
) -> tuple[dict[str, tuple[Proof, ...]], list[Answer]]:
    """The checks of a cell on each GPU model, and the answers of the workers.

    Without models, and where no worker has one of them, the checks run on any worker, whose model is "". `run` runs
    them on one model.
    """
    wanted = tuple(models) or ("",)
    answers = list(await asyncio.gather(*(run(model) for model in wanted)))
    found = {model: _proofs(answer, sha256, cell) for model, answer in zip(wanted, answers, strict=True)}
    if "" not in found and not any(answer.proofs for answer in answers):  # no such GPU: test what needs none
        answers.append(await run(""))
        found[""] = _proofs(answers[-1], sha256, cell)
    return found, answers


def _proofs(answer: Answer, sha256: str, cell: Cell) -> tuple[Proof, ...]:
    if answer.failure is None and not answer.no_wheel:
        return answer.proofs
    reason = str(answer.failure.error()) if answer.failure else "no worker could get the wheel"
    return not_run_in_cell(reason, sha256, cell).proofs


def usable(proofs: Sequence[Proof], cell: Cell, basis: Mapping[Check, str]) -> list[Proof]:
    """Earlier proofs of a cell that still count: nothing changed that they depend on, and no time limit decided."""
    return [p for p in proofs if p.cell == cell and p.basis == basis.get(p.check) and not timed_out(p)]


def merge_models(by_model: Mapping[str, Sequence[Proof]], earlier: Sequence[Proof] = ()) -> tuple[Proof, ...]:
    """One verdict for each check of a cell from the verdicts on several GPU models ("": a worker of any kind).

    A check on a GPU failed if it failed on one model, and passed if it passed on one model and failed on none. Its
    evidence has the verdict on each model, also "not run" for one that no worker has. Models of `earlier` proofs that
    did not run now keep their verdicts. Other checks take the verdict of the first worker that ran them, but a failure
    on any worker counts.
    """
    before = {proof.check: proof for proof in earlier}
    used = {model for model, proofs in by_model.items() if any(proof.has_run for proof in proofs)}
    merged = []
    for check in CELL_CHECKS:
        found = {model: p for model, proofs in by_model.items() for p in proofs if p.check is check}
        if not found:
            continue
        if check.on_gpu:
            merged.append(_on_gpu(found, before.get(check)))
        else:
            # A model that no worker has says nothing about a check that needs no GPU.
            found = {model: p for model, p in found.items() if model in used or not used}
            if not found:
                continue
            merged.append(min(found.values(), key=lambda proof: _RANK[proof.verdict]))
    return tuple(merged)


def _on_gpu(found: Mapping[str, Proof], earlier: Proof | None) -> Proof:
    found = {model: _on_its_model(model, proof) for model, proof in found.items()}
    table: dict[str, OnModel] = {}
    for model, proof in found.items():
        table |= {model: _entry(proof)} if model else models_of(proof)
    candidates = sorted(found.items(), key=lambda item: (_RANK[item[1].verdict], item[0] == ""))
    kept: dict[str, OnModel] = {}
    if earlier is not None and earlier.has_run:
        again = {model for model, on in table.items() if on.ran}
        kept = {model: on for model, on in models_of(earlier).items() if on.ran and model not in again}
        if earlier.verdict in {on.verdict for on in kept.values()}:
            candidates = sorted([*candidates, ("", earlier)], key=lambda item: _RANK[item[1].verdict])
    if not kept and list(found) == [""]:
        return found[""]
    model, worst = candidates[0]
    reason = worst.reason
    if model and worst.verdict is not Verdict.PASSED and model not in reason:
        reason = f"{model}: {reason}"
    models = {name: on.to_json() for name, on in sorted({**table, **kept}.items())}
    return replace(worst, reason=reason, evidence=worst.evidence | {KEY: models}, when=now())


def _on_its_model(model: str, proof: Proof) -> Proof:
    """The proof; "not run" if the checks used another GPU than the one that was asked for."""
    used = models_of(proof)
    if not model or not used or model in used:
        return proof
    reason = f"the worker tested on {', '.join(used)} and not on {model}"
    return replace(proof, verdict=Verdict.NOT_RUN, reason=reason, evidence={})


def _entry(proof: Proof) -> OnModel:
    return OnModel(proof.verdict, proof.reason, settled=bool(proof.evidence.get("settled")))


#: The verdict of several runs is the one with the lowest number.
_RANK = {Verdict.FAILED: 0, Verdict.ACCEPTED: 1, Verdict.PASSED: 2, Verdict.NOT_RUN: 3}


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
