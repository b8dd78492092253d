"""Companions beside a wheel; the visit itself is in test_cells.py and tests/integration."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builder.errors import MissingToolError
from builder.proofs.visit import _accompany
from builder.wheels.environment import DiskFullError


def test_a_companion_that_is_not_to_be_had_costs_no_other() -> None:
    there: list[str] = []

    def install(more: Sequence[str]) -> None:
        if "decord" in more:
            raise MissingToolError("the package index does not have what is needed")
        there[:] = more

    _accompany(["transformers", "decord", "numpy"], install)
    assert there == ["transformers", "numpy"]


def test_a_full_disk_is_no_missing_companion() -> None:
    def install(_: Sequence[str]) -> None:
        raise DiskFullError("the disk is full", stage="environment")

    with pytest.raises(DiskFullError):
        _accompany(["numpy"], install)
