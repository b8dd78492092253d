"""Reading matrix.yaml: all keys, defaults, and errors with their positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code, Exit, UsageError
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.config import Exclude, ImageRule
from builder.matrix.load import load_matrix, load_recipes
from tests.refused import refused
from tests.unit.matrix.conftest import WriteMatrix, WriteRecipe

FULL = """\
torch:
  - 2.10            # no quotes, and not 2.1
  - 2.2.0
  - '2.11'
cuda: [cu130, 12.1]
python: [3.10, 3.13t, 3.12]
archs: [9.0+PTX, 8.0]
platforms: [linux_aarch64, linux_x86_64]
extensions: [one]
exclude:
  - {torch: 2.2, cuda: 12.1, python: 3.12, extension: one, reason: nobody uses it}
images:
  - {cells: "torch2.1*", image: "base:1"}
torch_index: https://mirror.example/{variant}
"""


def test_all_keys(write_matrix: WriteMatrix, tmp_path: Path) -> None:
    matrix = load_matrix(write_matrix(FULL))
    assert matrix.path == tmp_path / "matrix.yaml"
    assert matrix.torch == (Torch(2, 2, 0), Torch(2, 10, 0), Torch(2, 11, 0))
    assert matrix.cuda == (Cuda(12, 1), Cuda(13, 0))
    assert matrix.python == (Python(3, 10), Python(3, 12), Python(3, 13, free_threaded=True))
    assert matrix.archs == (Arch(8, 0), Arch(9, 0, ptx=True))
    assert matrix.platforms == (Platform.LINUX_AARCH64, Platform.LINUX_X86_64)
    assert matrix.extensions == (tmp_path / "one",)
    assert matrix.exclude == (Exclude("nobody uses it", "2.2", Cuda(12, 1), Python(3, 12), "one"),)
    assert matrix.images == (ImageRule("torch2.1*", "base:1"),)
    assert matrix.torch_index == "https://mirror.example/{variant}"


def test_missing_keys_have_defaults(write_matrix: WriteMatrix) -> None:
    matrix = load_matrix(write_matrix(exclude="", images="", archs=""))  # a key without a value is not written
    assert (matrix.archs, matrix.exclude, matrix.images) == ((), (), ())
    assert matrix.platforms == (Platform.LINUX_X86_64,)
    assert matrix.torch_index == "https://download.pytorch.org/whl/{variant}"


def test_all_keys_of_an_image(write_matrix: WriteMatrix) -> None:
    first = 'cells: "*-cu118-*", image: "base:1", pythons: "pythons:1", runtime: "small:1", toolkit: 12.4'
    rules = f'[{{{first}}}, {{cells: "*", image: "base:2"}}]'
    matrix = load_matrix(write_matrix(images=rules))
    rule = ImageRule("*-cu118-*", "base:1", "pythons:1", "small:1", Cuda(12, 4))
    assert matrix.images == (rule, ImageRule("*", "base:2"))


def test_duplicate_values_count_once(write_matrix: WriteMatrix) -> None:
    assert load_matrix(write_matrix(torch="[2.11, 2.11.0]", python="[3.12, cp312]")).torch == (Torch(2, 11, 0),)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"pythons": "[3.12]"}, "5:1: unknown key `pythons`; did you mean `python`?"),
        ({"python": "3.12"}, "4:1: `python` must be a list; write [3.12]"),
        ({"python": "[]"}, "4:1: `python` must list at least one value"),
        ({"python": ""}, "4:1: key `python` has no value"),
        ({"extensions": "[one, two]"}, "4:19: `extensions[1]`: there is no folder two"),
        ({"extensions": "[onee]"}, "4:14: `extensions[0]`: there is no folder onee; did you mean `one`?"),
        ({"extensions": "[one, ./one]"}, "4:19: `extensions[1]`: the folder ./one is listed twice"),
    ],
)
def test_mistakes(write_matrix: WriteMatrix, keys: dict[str, str], says: str) -> None:
    path = write_matrix(**keys)
    with refused(Code.KEY_INVALID, f"{path}:{says}") as caught:
        load_matrix(path)
    assert caught.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch: [2.11]\ntorch: [2.12]\n", "2:1: key `torch` is given twice, first on line 1"),
        ("a: {b: 1,\n  b: 2}\n", "2:3: key `b` is given twice, first on line 1"),
        ("? [a]\n: 1\n", "1:3: a key must be plain text"),
        ("a: &x [*x]\n", "1:4: an alias is inside the value it refers to"),
        ("- torch\n", " the file must be a mapping of keys, such as `torch: [2.11]`"),
        ("", " key `torch` is missing"),
        ("torch: 1\n\tcuda: x\n", "2:1: this is not valid YAML: "),
        ("a: 1\n---\nb: 2\n", "2:1: this is not valid YAML: "),
        ("a\0b", " this is not valid YAML: "),
    ],
)
def test_invalid_yaml(write_matrix: WriteMatrix, text: str, says: str) -> None:
    path = write_matrix(text)
    with pytest.raises(UsageError) as caught:
        load_matrix(path)
    assert str(caught.value).startswith(f"{path}:{says}")


def test_unreadable_files(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xe9\n")
    for path, code in (
        (tmp_path / "none", Code.NO_SUCH_FILE),
        (tmp_path, Code.PATH_NOT_USABLE),
        (latin, Code.FILE_INVALID),
    ):
        with refused(code, str(path)):
            load_matrix(path)


def test_recipes_are_sorted_and_their_names_unique(write_matrix: WriteMatrix, write_recipe: WriteRecipe) -> None:
    write_recipe("two", name="a_b")
    matrix = load_matrix(write_matrix(extensions="[two, one]"))
    assert [recipe.name for recipe in load_recipes(matrix)] == ["a_b", "one"]
    write_recipe("one", name="A-B")  # wheels of both would carry one name
    with refused(Code.ALREADY_EXISTS, "a_b", *(str(matrix.path.parent / name) for name in ("one", "two"))):
        load_recipes(matrix)


def test_an_exclude_names_an_unknown_extension(write_matrix: WriteMatrix) -> None:
    matrix = load_matrix(write_matrix(exclude="[{extension: ones, reason: x}]"))
    with refused(Code.EXTENSION_UNKNOWN, "`exclude[0].extension`", "'ones'; did you mean `one`?"):
        load_recipes(matrix)
