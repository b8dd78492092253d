"""A project whose workflows are written."""

from pathlib import Path

import pytest

MATRIX = "torch: [2.11.0]\ncuda: [13.0]\npython: [3.12]\nextensions: [ops]\n"
RECIPE = "name: ops\nversion: 1.0\nabi: cpython\nsource: {path: .}\nimports: [ops]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "extension.yaml").write_text(RECIPE)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    (tmp_path / "buildfarm").mkdir()
    (tmp_path / "buildfarm" / "pyproject.toml").write_text("[project]\nname = 'buildfarm'\nversion = '1'\n")
    return tmp_path
