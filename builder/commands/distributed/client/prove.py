"""The checks of one wheel in one cell on workers: a task, or one for each GPU model that was asked for."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.protocol import CheckTask, WorkerAnswer
from builder.hashing import digest_of
from builder.matrix.config import Recipe
from builder.proof import Check, Proof, Verdict, now
from builder.proofs.cells.cell_run import not_run_in_cell
from builder.proofs.cells.op_gate import CELL_CHECKS
from builder.proofs.cells.prover import cell_basis, timed_out
from builder.publish.gpu_models import KEY, OnModel, models_of

#: How often checks are tried on workers that lack the wheel.
ATTEMPTS = 3
#: The verdict of several runs is the one with the lowest number.
_RANK = {Verdict.FAILED: 0, Verdict.ACCEPTED: 1, Verdict.PASSED: 2, Verdict.NOT_RUN: 3}


def basis_text(recipe: Recipe) -> str:
    """Digest of what the verdicts of a cell depend on besides the wheel."""
    return digest_of({str(check): digest for check, digest in cell_basis(recipe).items()})


def append_log(answer: WorkerAnswer, log: Path) -> None:
    """Append what a worker sent of its log to the log of this machine; without it if that is not possible."""
    with suppress(OSError), log.open("ab") as stream:
        stream.write(zlib.decompress(answer.log) if answer.log else b"")


@dataclass(frozen=True)
class CellChecks:
    """The checks of one wheel in one cell."""

    #: What a worker does; without a GPU model.
    task: CheckTask
    #: The wheel in the client's store.
    path: Path
    #: The files of the recipe.
    parts: Mapping[str, bytes]
    #: The GPU models on which the wheel is tested; empty: any worker.
    gpus: tuple[str, ...]
    #: Proofs of the wheel that the store has.
    earlier: Sequence[Proof]
    #: Gets the logs of the workers.
    log: Path

    @property
    def known(self) -> dict[Check, Proof]:
        """The earlier proofs of the cell that still count."""
        cell, basis = self.task.cell, cell_basis(self.task.recipe)
        proofs = [p for p in self.earlier if p.cell == cell and p.basis == basis.get(p.check) and not timed_out(p)]
        return {proof.check: proof for proof in proofs}

    @property
    def models(self) -> tuple[str, ...]:
        """The GPU models on which to test; "": on any worker. Empty if every check is decided."""
        return (self.gpus or ("",)) if self.task.again else open_models(self.known, self.gpus)

    def run(self, cluster: Cluster) -> tuple[Proof, ...]:
        """One proof for each check; "not run" with the reason where no worker can.

        Where no worker has one of the GPU models, the checks run on any worker.
        """
        models = self.models
        with ThreadPoolExecutor(len(models)) as pool:
            answers = dict(zip(models, pool.map(lambda model: self._on(cluster, model), models), strict=True))
        if "" not in models and not any(answer.proofs for answer in answers.values()):  # test what needs no GPU
            answers[""] = self._on(cluster, "")
        return merge_models({model: self._proofs(answer) for model, answer in answers.items()}, self.known)

    def _on(self, cluster: Cluster, gpu: str) -> WorkerAnswer:
        """Let a worker run the checks; send it the wheel, if it lacks it."""
        only = ""
        for attempt in range(ATTEMPTS):
            # A later attempt is another task: Dask does not run a finished key again.
            basis = f"{self.task.basis}-{attempt}" if attempt else self.task.basis
            task = replace(self.task, gpu=gpu, basis=basis)
            answer = cluster.compute(task, self.parts, only=only)
            append_log(answer, self.log)
            if not answer.no_wheel:
                break
            only = answer.worker
            with suppress(OSError):
                cluster.send(only, task.wheel, self.path)
        return answer

    def _proofs(self, answer: WorkerAnswer) -> tuple[Proof, ...]:
        if answer.error is None and not answer.no_wheel:
            return answer.proofs
        reason = str(answer.error or "no worker could get the wheel")
        return not_run_in_cell(reason, self.task.wheel.sha256, self.task.cell).proofs


def open_models(earlier: Mapping[Check, Proof], gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The GPU models on which a check could be decided; "": on any worker. Empty if each check is decided.

    `earlier` are the proofs of the cell that still count, and `gpus` the models that were asked for.
    """
    on_gpu = {check for check in CELL_CHECKS if check.on_gpu} if gpus else set[Check]()
    if on_gpu - earlier.keys():
        return gpus
    tables = [models_of(earlier[check]) for check in on_gpu]
    models = tuple(gpu for gpu in gpus if any(gpu not in table or not table[gpu].decided for table in tables))
    others = [earlier.get(check) for check in CELL_CHECKS if check not in on_gpu]
    is_open = any(proof is None or not (proof.has_run or proof.evidence.get("settled")) for proof in others)
    return models or (("",) if is_open else ())


def merge_models(by_model: Mapping[str, Sequence[Proof]], earlier: Mapping[Check, Proof]) -> tuple[Proof, ...]:
    """One verdict for each check of a cell from the verdicts on several GPU models ("": a worker of any kind).

    A check on a GPU failed if it failed on one model, and passed if it passed on one model and failed on none. Its
    evidence has the verdict on each model, also "not run" for one that no worker has. Models of `earlier` proofs that
    did not run now keep their verdicts. Other checks take the verdict of the first worker that ran them, but a failure
    on any worker counts.
    """
    used = [model for model, proofs in by_model.items() if any(proof.has_run for proof in proofs)]
    merged = []
    for check in CELL_CHECKS:
        found = {model: p for model, proofs in by_model.items() for p in proofs if p.check is check}
        # A check that needs no GPU did not run for a model that no worker has.
        ran = [proof for model, proof in found.items() if model in used or not used]
        if check.on_gpu and found:
            merged.append(_on_gpu(found, earlier.get(check)))
        elif ran:
            merged.append(min(ran, key=lambda proof: _RANK[proof.verdict]))
    return tuple(merged)


def _on_gpu(found: Mapping[str, Proof], earlier: Proof | None) -> Proof:
    found = {model: _on_its_model(model, proof) for model, proof in found.items()}
    table: dict[str, OnModel] = {}
    for model, proof in found.items():
        settled = bool(proof.evidence.get("settled"))
        table |= {model: OnModel(proof.verdict, proof.reason, settled=settled)} if model else models_of(proof)
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
