"""The op gate run in a cell's environment, and its answer written down as proofs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from builder import gate
from builder.gate.outcome import CHECKS, FAILED, NOT_RUN, Answer, Outcome, Spec
from builder.gate.pack import REFERENCES, pack
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.process import reap_orphans, run
from builder.proof import Check, Proof, Verdict
from builder.proofs.claim import listed, now
from builder.store import digest_of

#: The checks the gate makes, in the order they are shown.
GATE = tuple(Check(name) for name in CHECKS)


def spec_of(recipe: Recipe, jobs: int) -> Spec:
    """What the gate is to prove of an extension."""
    return Spec(
        name=recipe.name,
        imports=list(recipe.imports),
        companions=list(recipe.companions),
        libraries={stem: list(keys) for stem, keys in recipe.libraries.items()},
        has_cases=recipe.cases is not None,
        jobs=jobs,
    )


def gate_basis(recipe: Recipe) -> list[str]:
    """What the gate's verdicts rest on beside the wheel: its own code, the recipe's words, the cases' bytes."""
    files = [recipe.cases, *_references(recipe)] if recipe.cases else []
    return [_gate_version(), json.dumps(spec_of(recipe, 0).to_json()), *(_sha256(file) for file in files)]


def _references(recipe: Recipe) -> list[Path]:
    """Every file that travels beside the cases, data too."""
    found = sorted((recipe.folder / REFERENCES).rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


@cache
def _gate_version() -> str:
    return digest_of([_sha256(path) for path in sorted(Path(gate.__file__).parent.glob("*.py"))])


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_gate(interpreter: Path, recipe: Recipe, folder: Path, *, jobs: int, log: Path, job: str) -> Answer | str:
    """Run the gate with this Python; its answer, or a sentence on why there is none.

    `folder` must not exist; the gate is put there, works there and leaves its answer there. Its table goes to the log.
    No other run may use the name `job` meanwhile: what carries it is ended when this run is interrupted.
    """
    pack(folder, spec_of(recipe, jobs), recipe.cases)
    told, rooms = folder / "answer.json", folder / "rooms"
    rooms.mkdir()
    argv = [str(interpreter), "-I", "-X", "faulthandler", str(folder), "--answer", str(told)]
    try:
        # A gate that is killed cannot clean up: its rooms go with the folder.
        status = run(argv, log=log, job=job, env={**os.environ, "TMPDIR": str(rooms)})
    except BaseException:  # ^C, here or in another thread: its processes have sessions of their own, and would go on
        reap_orphans(job)
        raise
    try:
        return Answer.from_json(json.loads(told.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return f"the gate ended with status {status} and left no answer; its output is in {log}"


def gate_proofs(answer: Answer, wheel: str, cell: Cell | None) -> list[Proof]:
    """One proof for each check: failed if any case failed, passed only if every case passed.

    A check that some op was not put to counts as not run, however many others passed it.
    """
    return [_proof(answer, check, wheel, cell) for check in GATE]


def gate_not_run(reason: str, wheel: str, cell: Cell | None, *, settled: bool = False) -> list[Proof]:
    """The gate could not be run at all, for this reason; `settled` when it would be the same the next time."""
    evidence = {"settled": True} if settled else {}
    return [Proof(wheel, cell, check, Verdict.NOT_RUN, reason, evidence, now()) for check in GATE]


def _proof(answer: Answer, check: Check, wheel: str, cell: Cell | None) -> Proof:
    outcomes = [outcome for outcome in answer.outcomes if outcome.check == check]
    failed = [outcome for outcome in outcomes if outcome.verdict == FAILED]
    left = [outcome for outcome in outcomes if outcome.verdict == NOT_RUN]
    if failed:
        verdict, reason = Verdict.FAILED, "; ".join(_sentences(failed))
    elif left or not outcomes:
        verdict, reason = Verdict.NOT_RUN, _left(outcomes, left)
    else:
        verdict, reason = Verdict.PASSED, _figure(outcomes)
    evidence = {
        "where": answer.where,
        "settled": True,  # run again it would say the same: the reason lies in the recipe or in this machine
        "outcomes": [_evidence(outcome) for outcome in outcomes],
    }
    return Proof(wheel, cell, check, verdict, reason, evidence, now())


def _sentences(failed: Sequence[Outcome], most: int = 3) -> list[str]:
    said = list(dict.fromkeys(f"{_name(outcome)}{outcome.reason}" for outcome in failed))
    return said[:most] + ([f"and {len(said) - most} more"] if len(said) > most else [])


def _name(outcome: Outcome) -> str:
    if not outcome.op:
        return ""
    return f"{outcome.op} ({outcome.case}): " if outcome.case else f"{outcome.op}: "


def _left(outcomes: Sequence[Outcome], left: Sequence[Outcome]) -> str:
    """Why a check counts as not run: each reason once, with the ops it kept from it."""
    if not outcomes:
        return "there is nothing to run it on"
    reasons: dict[str, list[str]] = {}
    for outcome in left:
        reasons.setdefault(outcome.reason, []).append(outcome.op)
    if len(reasons) == 1 and len(left) == len(outcomes):
        return left[0].reason
    ran = len(outcomes) - len(left)
    said = [f"{listed(sorted(set(filter(None, ops))))}: {why}" if any(ops) else why for why, ops in reasons.items()]
    return f"{ran} of {len(outcomes)} passed; {'; '.join(said)}"


def _figure(outcomes: Sequence[Outcome]) -> str:
    ops = {outcome.op for outcome in outcomes if outcome.op}
    if len(outcomes) == 1:
        return outcomes[0].reason
    return f"{len(outcomes)} of {len(ops)} op{'s' * (len(ops) != 1)}"


def _evidence(outcome: Outcome) -> dict[str, object]:
    told: dict[str, object] = {"op": outcome.op, "case": outcome.case, "verdict": outcome.verdict}
    if outcome.reason:
        told["reason"] = outcome.reason
    if outcome.verdict == FAILED or outcome.check.startswith("gpu-"):
        told["evidence"] = outcome.evidence
    return told
