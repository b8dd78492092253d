"""Reading matrix.yaml and extension.yaml: keys and defaults. tests/unit/transcripts/plan.txt has the errors."""

from pathlib import Path
from typing import Any

import pytest

from builder.errors import Code, UsageError
from builder.gate.outcome import Accept
from builder.images.dockerfiles import render_template
from builder.matrix.axes import AbiClass, Arch, Cuda, Platform, Python, Torch
from builder.matrix.config import AbiRule, Exclude, GitSource, ImageRule, PathSource, SdistSource, WheelSource
from builder.matrix.fields import parse_size
from builder.matrix.load import load_matrix, load_recipe, load_recipes
from tests.conftest import coded
from tests.refused import refused
from tests.unit.matrix.conftest import WriteMatrix, WriteRecipe

FULL_MATRIX = """\
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
  - {cells: "*-cu118-*", image: "base:1", pythons: "pythons:1", runtime: "small:1", toolkit: 12.4}
  - {cells: "*", image: "base:2"}
torch_index: https://mirror.example/{variant}
"""


def test_all_keys_of_a_matrix(write_matrix: WriteMatrix, tmp_path: Path) -> None:
    matrix = load_matrix(write_matrix(FULL_MATRIX))
    assert matrix.path == tmp_path / "matrix.yaml"
    assert matrix.torch == (Torch(2, 2, 0), Torch(2, 10, 0), Torch(2, 11, 0))
    assert matrix.cuda == (Cuda(12, 1), Cuda(13, 0))
    assert matrix.python == (Python(3, 10), Python(3, 12), Python(3, 13, free_threaded=True))
    assert matrix.archs == (Arch(8, 0), Arch(9, 0, ptx=True))
    assert matrix.platforms == (Platform.LINUX_AARCH64, Platform.LINUX_X86_64)
    assert matrix.extensions == (tmp_path / "one",)
    assert matrix.exclude == (Exclude("nobody uses it", "2.2", Cuda(12, 1), Python(3, 12), "one"),)
    rule = ImageRule("*-cu118-*", "base:1", "pythons:1", "small:1", Cuda(12, 4))
    assert matrix.images == (rule, ImageRule("*", "base:2"))
    assert matrix.torch_index == "https://mirror.example/{variant}"


def test_missing_keys_have_defaults(write_matrix: WriteMatrix) -> None:
    matrix = load_matrix(write_matrix(exclude="", images="", archs=""))  # a key without a value is not written
    assert (matrix.archs, matrix.exclude, matrix.images) == ((), (), ())
    assert matrix.platforms == (Platform.LINUX_X86_64,)
    assert matrix.torch_index == "https://download.pytorch.org/whl/{variant}"


def test_duplicate_values_count_once(write_matrix: WriteMatrix) -> None:
    assert load_matrix(write_matrix(torch="[2.11, 2.11.0]", python="[3.12, cp312]")).torch == (Torch(2, 11, 0),)


def test_recipes_are_sorted_and_their_names_unique(write_matrix: WriteMatrix, write_recipe: WriteRecipe) -> None:
    write_recipe("two", name="a_b")
    matrix = load_matrix(write_matrix(extensions="[two, one]"))
    assert [recipe.name for recipe in load_recipes(matrix)] == ["a_b", "one"]
    write_recipe("one", name="A-B")  # wheels of both would carry one name
    with refused(Code.ALREADY_EXISTS, "a_b", *(str(matrix.path.parent / name) for name in ("one", "two"))):
        load_recipes(matrix)


HASH = "0123456789abcdef" * 4
FULL_RECIPE = f"""\
name: torch_thing
version: 2.10
summary: A thing
source: {{sdist: torch-thing, version: 2.10, sha256: {HASH}}}
patches: [fix.patch]
abi:
  - {{class: stable, torch: ">=2.10"}}
  - {{class: cpython}}
cuda: optional
env: {{FORCE_CUDA: 1, EMPTY: , ON: yes}}
build_requires: ["setuptools>=77"]
requires: [numpy]
assume_cuda: true
archs: [9.0, 8.0]
python: ">=3.10"
imports: [torch_thing, torch_thing.ops]
needs_first: [torch]
accepts:
  - {{check: fake, op: "thing::f", cell: "torch2.2*", reason: no fake kernel}}
  - {{check: import-order, reason: documented}}
companions: [transformers==4.49.0]
libraries:
  _C: [CPU, CUDA]
memory_per_job: 1.5GiB
"""


def test_all_keys_of_a_recipe(write_recipe: WriteRecipe) -> None:
    folder = write_recipe(text=FULL_RECIPE)
    (folder / "fix.patch").write_text("")
    recipe = load_recipe(folder)
    assert (recipe.name, recipe.version, recipe.summary) == ("torch_thing", "2.10", "A thing")
    assert recipe.folder == folder
    assert recipe.source == SdistSource("torch-thing", "2.10", HASH)
    assert recipe.modules == ("torch", "torch_thing", "torch_thing.ops")
    assert recipe.accepts == (
        Accept("fake", "no fake kernel", op="thing::f", cell="torch2.2*"),
        Accept("import-order", "documented"),
    )
    assert recipe.patches == (folder / "fix.patch",)
    assert recipe.abi == (AbiRule(AbiClass.STABLE, ">=2.10"), AbiRule(AbiClass.CPYTHON, ""))
    assert (recipe.cuda, recipe.assume_cuda, recipe.python) == ("optional", True, ">=3.10")
    assert recipe.env == {"FORCE_CUDA": "1", "EMPTY": "", "ON": "yes"}
    assert (recipe.build_requires, recipe.requires) == (("setuptools>=77",), ("numpy",))
    assert recipe.archs == (Arch(8, 0), Arch(9, 0))
    assert (recipe.imports, recipe.companions) == (("torch_thing", "torch_thing.ops"), ("transformers==4.49.0",))
    assert recipe.libraries == {"_C": ("CPU", "CUDA")}
    assert recipe.memory_per_job == 3 * 2**29


def test_defaults(write_recipe: WriteRecipe) -> None:
    recipe = load_recipe(write_recipe())
    assert recipe.source == PathSource(recipe.folder)
    assert recipe.abi == (AbiRule(AbiClass.CPYTHON, ""),)
    assert (recipe.cuda, recipe.assume_cuda, recipe.memory_per_job) == ("required", False, 2 * 2**30)
    assert (recipe.patches, recipe.archs, recipe.env, recipe.libraries) == ((), (), {}, {})


def test_sources_elsewhere(write_recipe: WriteRecipe) -> None:
    url, revision = "https://git.example/thing.git", "0123456789" * 4
    source = f"{{git: '{url}', revision: {revision}, subdirectory: ops}}"
    assert load_recipe(write_recipe(source=source)).source == GitSource(url, revision, "ops")
    official = load_recipe(write_recipe(source="{wheel: torchvision, version: 0.26.0}"))
    assert official.source == WheelSource("torchvision", "0.26.0")


def test_a_patch_may_be_for_some_builds_only(write_recipe: WriteRecipe) -> None:
    new, cuda, every = (
        "{file: ./any/../new.patch, torch: '>=2.6'}",
        "{file: cuda.patch, cuda: '>=13', torch: '<3'}",
        "every.patch",
    )
    folder = write_recipe(patches=f"[{every}, {new}, {cuda}]")
    for name in ("new.patch", "cuda.patch", every):
        (folder / name).write_text(name)
    recipe = load_recipe(folder)
    assert [path.name for path in recipe.patches] == [every, "new.patch", "cuda.patch"]

    def applied(torch: str, version: str) -> list[str]:
        return [path.name for path in recipe.of(Torch.parse(torch), Cuda.parse(version)).patches]

    assert applied("2.5.1", "12.4") == [every]
    assert applied("2.6.0", "12.4") == [every, "new.patch"]
    assert applied("2.11.0", "13.0") == [every, "new.patch", "cuda.patch"]


def test_a_link_inside_the_folder_is_allowed(write_recipe: WriteRecipe) -> None:
    folder = write_recipe(source="{path: link}")
    (folder / "src").mkdir()
    (folder / "link").symlink_to(folder / "src")
    assert load_recipe(folder).source == PathSource(folder / "src")


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
