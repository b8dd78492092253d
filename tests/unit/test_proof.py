"""The checks of a proof: the static ones, and those of the op gate's table in the same order."""

from __future__ import annotations

from builder.gate.check_table import CHECKS, MEANINGS
from builder.proof import Check


def test_every_check_of_the_gate_is_a_check_of_proofs_in_the_same_order() -> None:
    assert [str(check) for check in Check if check in CHECKS] == list(CHECKS)


def test_every_check_has_a_meaning_in_one_sentence() -> None:
    assert all(check.meaning.endswith(".") and "\n" not in check.meaning for check in Check)
    assert Check.VALUES.meaning == MEANINGS["values"]
    assert Check("tags") is Check.TAGS
