"""Tasks of a small build, and proofs of its wheel, as the tests of builds on workers need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.commands.distributed.protocol import BuildTask, CheckTask, SentWheel
from builder.commands.run_settings import RunSettings
from builder.matrix.axes import Cell
from builder.matrix.config import Matrix
from builder.proof import Check, Proof, Verdict
from builder.proofs.cells.op_gate import CELL_CHECKS
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, build_record

CELL: Cell = BUILD.serves[0]
SHA = "a" * 64
RECIPE = make.recipe("ops")
SETTINGS = RunSettings(Matrix(Path("matrix.yaml"), (CELL.torch,), (CELL.cuda,), (CELL.python,)), "local")
WHEEL = SentWheel("ops-1.0-py3-none-any.whl", SHA, 9, "d" * 64, build_record())
BUILD_TASK = BuildTask("e" * 64, BUILD, RECIPE, SETTINGS)
PROOF_TASK = CheckTask(WHEEL, RECIPE, CELL, SETTINGS, "basis", BUILD)
SMOKE_TASK = CheckTask(SentWheel("ops-1.0-py3-none-any.whl", SHA, 9), RECIPE, CELL, SETTINGS, "basis", again=True)


def proofs(gpu: Verdict, reason: str = "", *, others: Verdict = Verdict.PASSED, **evidence: Any) -> tuple[Proof, ...]:
    """Every check of a cell: those on a GPU with this verdict, reason and evidence, and the others."""
    return tuple(
        Proof(SHA, CELL, check, gpu, reason, dict(evidence)) if check.on_gpu else Proof(SHA, CELL, check, others)
        for check in CELL_CHECKS
    )


def on(check: Check, found: tuple[Proof, ...]) -> Proof:
    """The proof of one check."""
    (proof,) = [proof for proof in found if proof.check is check]
    return proof
