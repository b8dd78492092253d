"""Companions of a wheel. The run itself is tested in test_prover.py and tests/full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.errors import Code, MissingToolError
from builder.proofs.cells import cell_run
from builder.proofs.cells.cell_run import _install_companions, _missing_driver
from builder.wheels.toolchain.uv import DiskFullError


def test_missing_companion_does_not_prevent_the_others() -> None:
    installed: list[str] = []

    def install(more: Sequence[str]) -> None:
        if "decord" in more:
            raise MissingToolError(
                "the package index does not have a required package or version", Code.PACKAGE_NOT_FOUND
            )
        installed[:] = more

    _install_companions(["transformers", "decord", "numpy"], install)
    assert installed == ["transformers", "numpy"]


def test_full_disk_is_not_a_missing_companion() -> None:
    def install(_: Sequence[str]) -> None:
        raise DiskFullError("the disk is full", stage="environment")

    with pytest.raises(DiskFullError):
        _install_companions(["numpy"], install)


@pytest.mark.parametrize(
    ("library", "needed", "here", "lacking"),
    [
        ("libcuda.so.1", "libcuda.so.1", None, True),
        ("libcuda.so.1", "libcuda.so.1", "libcuda.so.1", False),  # the driver is here: the wheel is at fault
        ("libcuda.so.1", "libc.so.6", None, False),  # the wheel only says so
        ("libcudart.so.13", "libcudart.so.13", None, False),  # not of the driver
    ],
)
def test_an_import_without_the_driver_says_nothing(
    library: str, needed: str, here: str | None, lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_run, "find_library", lambda _: here)
    facts = SimpleNamespace(libraries=[SimpleNamespace(needed=(needed,))])
    monkeypatch.setattr(cell_run, "read_facts", lambda _: facts)
    reason = f"import of ops failed: ImportError: {library}: cannot open shared object file: No such file or directory"
    assert bool(_missing_driver(reason, Path("ops.whl"))) is lacking
