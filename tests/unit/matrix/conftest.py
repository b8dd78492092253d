"""Fixtures that write matrix.yaml and extension.yaml."""

from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """\
name: {name}
version: 1.0
source: {{path: .}}
abi: cpython
imports: [{name}]
"""
MATRIX = """\
torch: [2.11]
cuda: [13.0]
python: [3.12]
extensions: [one]
"""

WriteRecipe = Callable[..., Path]
WriteMatrix = Callable[..., Path]


def _with(body: str, keys: dict[str, str]) -> str:
    """The file with these keys; a key given twice is an error, so its line is replaced."""
    for key, value in keys.items():
        lines = [line for line in body.splitlines() if not line.startswith(f"{key}:")]
        body = "\n".join([*lines, f"{key}: {value}", ""])
    return body


@pytest.fixture
def write_recipe(tmp_path: Path) -> WriteRecipe:
    """Write the folder of an extension and return it."""

    def write(folder_name: str = "one", /, text: str | None = None, **keys: str) -> Path:
        folder = tmp_path / folder_name
        folder.mkdir(exist_ok=True)
        body = RECIPE.format(name=folder_name) if text is None else text
        (folder / "extension.yaml").write_text(_with(body, keys), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def write_matrix(tmp_path: Path, write_recipe: WriteRecipe) -> WriteMatrix:
    """Write matrix.yaml next to an extension named `one`, and return its path."""

    def write(text: str | None = None, **keys: str) -> Path:
        if not (tmp_path / "one").exists():
            write_recipe("one")
        path = tmp_path / "matrix.yaml"
        path.write_text(_with(MATRIX if text is None else text, keys), encoding="utf-8")
        return path

    return write
