"""Installed projects: the name of one whose metadata is damaged."""

from __future__ import annotations

from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from builder.commands.axes import installed_version
from builder.wheelfile.installed import distribution_name


@pytest.mark.parametrize("metadata", [None, b"", b"Metadata-Version: 2.1\nVersion: 1\n", b"Name: \xff\n", b"Name:\n"])
def test_a_damaged_project_has_no_name_and_hides_no_other(tmp_path: Path, metadata: bytes | None) -> None:
    (tmp_path / "torch-2.11.0.dist-info").mkdir()
    (tmp_path / "torch-2.11.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n")
    damaged = tmp_path / "damaged-1.dist-info"
    damaged.mkdir()
    if metadata is not None:
        (damaged / "METADATA").write_bytes(metadata)
    assert distribution_name(PathDistribution(damaged)) == ""
    assert installed_version(tmp_path, "torch") == "2.11.0"
    assert installed_version(tmp_path, "damaged") == ""
