"""matrix.yaml is created, and extended without losing what the user wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.config import Matrix
from builder.matrix.yaml_document import read_document
from builder.recipes.matrix_file import add_extension, create_matrix
from tests.conftest import coded

HEAD = "# my versions\ntorch: [2.11]  # one\n"
TAIL = "\n# the end\narchs: [9.0]\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("extensions:\n  - a  # first\n  - b\n", "extensions:\n  - a  # first\n  - b\n  - new\n"),
        ("extensions:\n- a # first\n", "extensions:\n- a # first\n- new\n"),
        ("extensions: [a, b] # all\n", "extensions: [a, b, new] # all\n"),
        ("extensions: []\n", "extensions: [new]\n"),
        ("extensions: [\n  a,\n  b,\n]\n", "extensions: [\n  a,\n  b, new\n]\n"),
        ("extensions:  # none yet\n", "extensions:  # none yet\n  - new\n"),
        ("extensions: [a, new]\n", "extensions: [a, new]\n"),
    ],
)
@pytest.mark.parametrize("tail", ["", TAIL], ids=["at the end", "before other keys"])
def test_extensions_grow_and_the_rest_stays(tmp_path: Path, before: str, after: str, tail: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(HEAD + before + tail)
    add_extension(path, "new")
    assert path.read_text() == HEAD + after + tail
    assert read_document(path).data["extensions"][-1] == "new"


def test_a_file_without_the_key_and_without_a_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text("torch: [2.11]")
    add_extension(path, "a b: c")
    assert read_document(path).data == {"torch": ["2.11"], "extensions": ["a b: c"]}


def test_a_form_that_cannot_be_extended_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text("python: &list [a]\nextensions: *list\n")
    with pytest.raises(UsageError, check=coded(Code.KEY_INVALID)):
        add_extension(path, "new")
    assert path.read_text() == "python: &list [a]\nextensions: *list\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_lists_the_axes(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    create_matrix(path, "extensions/ops", Matrix(path, (Torch(2, 11, 0),), (Cuda(13, 0),), (Python(3, 12),)))
    assert read_document(path).data == {
        "torch": ["2.11.0"],
        "cuda": ["13.0"],
        "python": ["3.12"],
        "extensions": ["extensions/ops"],
    }
