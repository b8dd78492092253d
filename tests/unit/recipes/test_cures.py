"""What the cures of a failed build leave in the folder of its recipe, and that the next build needs nothing else."""

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.diagnosis.first_error import every_error
from builder.diagnosis.known_errors import KnownCause, causes
from builder.errors import UsageError
from builder.matrix.axes import Torch
from builder.matrix.config import PathSource, Recipe
from builder.matrix.load import load_recipe
from builder.recipes.cures import PATCH, cure
from builder.store import Store
from builder.wheels.sources.prepare import prepare_source, source_digest
from tests.unit.wheels.make_record import build_for

BUILD = build_for("torch2.11.0-cu130-cp312")
CODE = (
    b'// a\r\nvoid f(at::Tensor x) {\r\n  AT_CHECK(true, "");\r\n  AT_DISPATCH_ALL_TYPES(x.type(), "f", [&] {});\r\n}'
)
AT_CHECK = 'a.cu(3): error: identifier "AT_CHECK" is undefined'
NO_MODULE = "ModuleNotFoundError: No module named 'pybind11'"
CURED = CODE.replace(b"AT_CHECK", b"TORCH_CHECK").replace(b"x.type()", b"x.scalar_type()")


def found(*lines: str) -> list[KnownCause]:
    return causes(every_error(lines, "/src"), BUILD.torch, BUILD.cuda, [])


@pytest.fixture
def recipe(tmp_path: Path, store: Store) -> Recipe:
    """A recipe whose source distribution is in the store."""
    (tree := tmp_path / "toy-1.0").mkdir()
    (tree / "a.cu").write_bytes(CODE)
    (tree / "b.cu").write_text("int b;\n")
    with tarfile.open(archive := tmp_path / "toy-1.0.tar.gz", "w:gz") as tar:
        tar.add(tree, tree.name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    kept = store.root / "sources" / "sdists" / digest
    kept.mkdir(parents=True)
    archive.rename(kept / archive.name)
    (folder := tmp_path / "toy").mkdir()
    (folder / "extension.yaml").write_text(
        "# mine\nname: toy\nversion: 1.0\nsource:\n  sdist: toy\n  version: 1.0\n"
        f"  sha256: {digest}\nabi: cpython\nimports: [toy]\nbuild_requires: [numpy]  # mine\n"
    )
    return load_recipe(folder)


def prepared(recipe: Recipe, store: Store, folder: Path) -> bytes:
    folder.mkdir()
    prepare_source(recipe, folder, cache=store.root / "sources")
    assert (folder / "b.cu").read_text() == "int b;\n"
    return (folder / "a.cu").read_bytes()


def test_the_recipe_has_the_patch_and_the_next_build_has_the_same_source(
    recipe: Recipe, store: Store, tmp_path: Path
) -> None:
    cured, treatment = cure(recipe, BUILD, found(AT_CHECK), store)
    assert len(treatment.done) == 2
    assert cured.patches == (recipe.folder / PATCH,)
    assert prepared(cured, store, tmp_path / "cured") == CURED
    again = load_recipe(recipe.folder)
    assert again == cured
    assert source_digest(again) == source_digest(cured) != source_digest(recipe)
    head = (recipe.folder / PATCH).read_text().partition("diff --git")[0].splitlines()
    assert head[2:4] == [f"  {line}" for line in treatment.done]
    text = (recipe.folder / "extension.yaml").read_text()
    assert text.endswith(f"# mine\n# a cure that `buildfarm build` added\npatches:\n  - {PATCH}\n")


def test_a_second_cure_is_in_the_same_patch(recipe: Recipe, store: Store, tmp_path: Path) -> None:
    first, one = cure(recipe, BUILD, found(AT_CHECK), store)
    lines = (
        "b.cu:1:1: error: 'unique_ptr' is not a member of 'std'",
        "b.cu:1:1: note: 'std::unique_ptr' is in header '<memory>'; did you forget to '#include <memory>'?",
    )
    second, two = cure(first, BUILD, found(*lines), store)
    assert second.patches == first.patches
    assert second is not first
    (tmp_path / "cured").mkdir()
    prepare_source(second, tmp_path / "cured", cache=store.root / "sources")
    assert (tmp_path / "cured/a.cu").read_bytes() == CURED
    assert (tmp_path / "cured/b.cu").read_text() == "#include <memory>\nint b;\n"
    head = (recipe.folder / PATCH).read_text().partition("diff --git")[0]
    assert [line.strip() for line in head.splitlines()[2:] if line] == [*one.done, *two.done]


def test_the_same_error_again_changes_nothing(recipe: Recipe, store: Store) -> None:
    cured, _ = cure(recipe, BUILD, found(AT_CHECK), store)
    again, treatment = cure(cured, BUILD, found(AT_CHECK), store)
    assert again is cured
    assert treatment.refused == ["`AT_CHECK` is not cured: no file has code of the form that the cure knows"]


def test_a_requirement_joins_those_of_the_recipe(recipe: Recipe, store: Store) -> None:
    cured, treatment = cure(recipe, BUILD, found(NO_MODULE), store)
    assert cured.build_requires == ("numpy", "pybind11")
    assert treatment.done == ["extension.yaml: build_requires: pybind11"]
    assert "build_requires: [numpy, pybind11]  # mine\n" in (recipe.folder / "extension.yaml").read_text()
    assert load_recipe(recipe.folder) == cured
    assert cure(cured, BUILD, found(NO_MODULE), store)[0] is cured


def test_a_build_whose_torch_needs_no_cures_has_the_source_as_it_is(
    recipe: Recipe, store: Store, tmp_path: Path
) -> None:
    cure(recipe, BUILD, found(AT_CHECK), store)
    path = recipe.folder / "extension.yaml"
    path.write_text(path.read_text().replace(f"- {PATCH}", f"- {{file: {PATCH}, torch: '>=2.6'}}"))
    both = load_recipe(recipe.folder)
    for torch, code in (("2.5.1", CODE), ("2.6.0", CURED)):
        assert prepared(both.of(Torch.parse(torch), BUILD.cuda), store, tmp_path / torch) == code
    assert source_digest(both.of(Torch.parse("2.5.1"), BUILD.cuda)) == source_digest(recipe)
    before = (recipe.folder / PATCH).read_bytes()
    again, treatment = cure(both, build_for("torch2.5.1-cu124-cp312"), found(NO_MODULE), store)
    assert again is both
    assert treatment.refused == [f"nothing is cured: `patches` has {PATCH} for other builds, or not at its end"]
    assert (recipe.folder / PATCH).read_bytes() == before


def test_the_folder_of_the_user_stays(recipe: Recipe, store: Store, tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "a.cu").write_bytes(CODE)
    mine = replace(recipe, source=PathSource(own))
    before = {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and store.root not in path.parents
    }
    assert cure(mine, BUILD, found(AT_CHECK, NO_MODULE), store)[0] is mine
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_form_that_cannot_be_extended_is_an_error(recipe: Recipe, store: Store) -> None:
    path = recipe.folder / "extension.yaml"
    before = path.read_text().replace("build_requires: [numpy]  # mine", "build_requires: &own [numpy]\nrequires: *own")
    path.write_text(before)
    own = load_recipe(recipe.folder)
    with pytest.raises(UsageError, match="a form that buildfarm cannot extend"):
        cure(own, BUILD, found(NO_MODULE), store)
    assert path.read_text() == before
