"""What is checked about a wheel that others built: its claim, without a plan and a record of its build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.proofs.cells.prover import Subject
from builder.proofs.foreign.foreign_claim import foreign_claim, provided_by_torch
from builder.wheelfile.facts import WheelFacts


def foreign_subject(wheel: Path, facts: WheelFacts, cells: Sequence[Cell], recipe: Recipe) -> Subject:
    """What the prover proves about a wheel that others built, in these cells; `cells` may be empty.

    The recipe gives the imports, the cases and the accepted findings. It may say that the wheel needs GPU code.
    """
    claim = foreign_claim(facts, cells, cuda_required=recipe.cuda == "required")
    claim = replace(claim, max_size=recipe.max_size, variants=recipe.variants)
    return Subject(wheel, facts, claim, provided_by_torch(facts), recipe)
