"""Companions of a wheel. The run itself is tested in test_prover.py and tests/full."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builder.errors import MissingToolError
from builder.proofs.cells.cell_run import _install_companions
from builder.wheels.toolchain.uv import DiskFullError


def test_missing_companion_does_not_prevent_the_others() -> None:
    installed: list[str] = []

    def install(more: Sequence[str]) -> None:
        if "decord" in more:
            raise MissingToolError("the package index does not have a required package or version")
        installed[:] = more

    _install_companions(["transformers", "decord", "numpy"], install)
    assert installed == ["transformers", "numpy"]


def test_full_disk_is_not_a_missing_companion() -> None:
    def install(_: Sequence[str]) -> None:
        raise DiskFullError("the disk is full", stage="environment")

    with pytest.raises(DiskFullError):
        _install_companions(["numpy"], install)
