"""Files of matrices and recipes that would exhaust the machine, or whose values would leave their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.errors import Code, UsageError
from builder.images.dockerfiles import render_template
from builder.matrix.fields import parse_size
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.yaml_document import read_document
from tests.conftest import coded
from tests.fuzz.targets import MATRIX, RECIPE

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(BOMB, "more than 20000 values", id="alias bomb"),
        pytest.param("a: " + "[" * 900 + "]" * 900, "nested more than 20 levels", id="nesting"),
        pytest.param("a: " + "[" * 100_000 + "]" * 100_000, "nested more than 20 levels", id="deep nesting"),
        pytest.param("\n".join(" " * n + "a:" for n in range(200)), "nested more than 20 levels", id="blocks"),
        pytest.param("a: " + "x" * 20_000, "a value has more than 16384 characters", id="long value"),
        pytest.param("? " + "x" * 20_000 + "\n: a", "a value has more than 16384 characters", id="long key"),
        pytest.param("# " + "x" * 2**20, "the file has more than 1048576 characters", id="large file"),
        pytest.param('a: "b\\0c"', r"the control character '\\x00'", id="NUL"),
        pytest.param('a: "\\e[31m"', r"the control character '\\x1b'", id="escape code"),
    ],
)
def test_a_file_beyond_the_limits_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_document(path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param("torch: [2.2", "torch: [2." + "9" * 5000, "has 5002 characters; at most 200", id="torch"),
        pytest.param("cuda: [12.1", "cuda: [13." + "9" * 5000, "has 5003 characters; at most 200", id="cuda"),
        pytest.param("archs: [8.0", "archs: [" + "9" * 400, "has 400 characters; at most 200", id="arch"),
        pytest.param("768MiB", "9" * 400 + "GiB", "has 403 characters; at most 200", id="memory"),
        pytest.param("version: 1.0.0", 'version: "1.0\\n"', r"'1.0\\n' is not a version", id="line end"),
        pytest.param("version: 1.0.0", "version: " + "1" * 5000, "has 5000 characters", id="version"),
        pytest.param('"debian:12"', '"debian:12\\nRUN echo PWNED"', r"PWNED' is not an image name", id="RUN"),
        pytest.param('"debian:12"', '"debian:12 AS x"', "is not an image name", id="AS"),
        pytest.param("manylinux_2_28_x86_64", "x --platform=y", "is not an image name", id="option"),
    ],
)
def test_a_value_beyond_the_limits_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in MATRIX + RECIPE
    (tmp_path / "ops").mkdir()
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace(old, new))
    (tmp_path / "ops/extension.yaml").write_text(RECIPE.replace(old, new))
    with pytest.raises(UsageError, match=says):
        load_recipes(load_matrix(tmp_path / "matrix.yaml"))


@pytest.mark.parametrize("size", ["9" * 400 + "G", "9" * 5000])
def test_sizes_beyond_every_disk(size: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        parse_size(size)


class Spec:
    """A spec that has the same text for every value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> Any:
        return [self.text] if name in ("packages", "requirements", "programs") else Spec(self.text)

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize("text", ["a\nRUN b", "a'; b", 'a" b', "$(a)", "`a`", "a && b", "a\\", "a; b", "a | b", "a  b"])
@pytest.mark.parametrize("name", ["build.Dockerfile.j2", "runtime.Dockerfile.j2"])
def test_a_template_prints_no_value_that_leaves_its_place(name: str, text: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        render_template(name, Spec(text))
