"""`buildfarm add` and `buildfarm build SOURCE`: projects, repositories and folders become recipes that build."""

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands.add import AddOptions, next_steps, run_add
from builder.commands.axes import new_axes
from builder.errors import Code, UsageError
from builder.matrix.config import GitSource, SdistSource, Selection
from builder.matrix.load import load_matrix, load_recipe
from tests.conftest import coded, git
from tests.refused import refused
from tests.unit import loopback

SETUP = 'setup(name="small-ops", version="1.2", ext_modules=[CUDAExtension("small_ops._C", ["ops.cu"])])\n'


def write_source(folder: Path, setup: str = SETUP) -> Path:
    (folder / "small_ops").mkdir(parents=True)
    (folder / "setup.py").write_text(setup)
    (folder / "ops.cu").write_text("#include <torch/library.h>\n")
    (folder / "small_ops" / "__init__.py").write_text("import torch\n")
    return folder


def options(tmp_path: Path, source: str) -> AddOptions:
    return AddOptions(source=source, matrix=tmp_path / "project" / "matrix.yaml", store=tmp_path / "store")


def add_sdist(index: loopback.PackageIndex, source: Path, version: str) -> str:
    """Put a source distribution into the index; return its sha256."""
    path = index.root / "default" / f"small_ops-{version}.tar.gz"
    path.parent.mkdir(exist_ok=True, parents=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(source, f"small_ops-{version}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_newest_version_of_a_project(tmp_path: Path, index: loopback.PackageIndex) -> None:
    add_sdist(index, write_source(tmp_path / "old"), "1.1")
    sha256 = add_sdist(index, write_source(tmp_path / "new"), "1.2")
    added = run_add(options(tmp_path, "small-ops"))
    assert added.recipe == load_recipe(tmp_path / "project" / "extensions" / "small_ops")
    assert added.recipe.source == SdistSource("small-ops", "1.2", sha256)
    assert load_matrix(added.matrix).extensions == (added.recipe.folder,)
    again = run_add(options(tmp_path, "small-ops==1.2"))
    assert (again.recipe, again.draft) == (added.recipe, None)
    with refused(Code.ALREADY_EXISTS, "small_ops 1.2"):
        run_add(options(tmp_path, "small-ops==1.1"))


def test_a_name_of_the_matrix_is_not_looked_for_in_the_index(tmp_path: Path, index: loopback.PackageIndex) -> None:
    index.add("small-ops", "1.2")
    run_add(options(tmp_path, str(write_source(tmp_path / "small"))))
    again = run_add(options(tmp_path, "small-ops"))
    assert again.listed
    assert again.recipe.name == "small_ops"
    assert not index.requested, "the project of the index is that of somebody else"


@pytest.mark.parametrize("revision", ["main", "v1", ""])
def test_repository_at_a_branch_and_at_a_tag(tmp_path: Path, revision: str) -> None:
    repository = write_source(tmp_path / "repository")
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=one")
    git(repository, "tag", "--annotate", "--message=tag", "v1")
    commit = git(repository, "rev-parse", "HEAD")
    added = run_add(options(tmp_path, f"{repository.as_uri()}@{revision}" if revision else repository.as_uri()))
    assert added.recipe.source == GitSource(repository.as_uri(), commit)
    with refused(Code.FETCH_FAILED, "v2"):
        run_add(options(tmp_path, f"{repository}@v2"))


def test_folder_gets_its_recipe_where_it_is(tmp_path: Path) -> None:
    source = write_source(tmp_path / "project" / "mine")
    added = run_add(options(tmp_path, str(source)))
    assert added.recipe.folder == source
    assert "  - mine\n" in added.matrix.read_text()
    second = write_source(tmp_path / "elsewhere", SETUP.replace("small", "other"))
    (second / "small_ops").rename(second / "other_ops")
    assert run_add(options(tmp_path, str(second))).axes is None
    assert "  - ../elsewhere\n" in added.matrix.read_text()
    assert len(load_matrix(added.matrix).extensions) == 2


def test_folder_with_a_recipe_keeps_it(tmp_path: Path) -> None:
    source = write_source(tmp_path / "mine")
    first = run_add(options(tmp_path, str(source)))
    first.matrix.unlink()
    (source / "extension.yaml").write_text((source / "extension.yaml").read_text() + "# mine\n")
    again = run_add(options(tmp_path, str(source)))
    assert (again.recipe, again.draft, again.listed) == (first.recipe, None, False)
    assert (source / "extension.yaml").read_text().endswith("# mine\n")
    assert load_matrix(again.matrix).extensions == (source,)
    assert run_add(options(tmp_path, str(source))).listed


def test_a_source_that_cannot_be_built_writes_nothing(tmp_path: Path) -> None:
    source = write_source(tmp_path / "mine")
    (source / "ops.cu").unlink()
    with pytest.raises(UsageError, check=coded(Code.SOURCE_UNSUPPORTED)):
        run_add(options(tmp_path, str(source)))
    assert not (tmp_path / "project").exists()
    assert not (source / "extension.yaml").exists()


@pytest.mark.parametrize(("limit", "python"), [(">=3.12", "3.14"), ("<3.11", "3.10"), (">=3.99", None), ("", None)])
def test_a_new_matrix_has_a_python_of_the_source(limit: str, python: str | None) -> None:
    axes = new_axes(Selection(torch=("2.11",)), (), limit)
    assert str(axes.python[0]) == (python or str(new_axes(Selection(torch=("2.11",))).python[0]))


def test_a_source_that_excludes_this_python_gets_another(tmp_path: Path) -> None:
    source = write_source(tmp_path / "mine", SETUP.replace("version=", 'python_requires="<3.11", version='))
    added = run_add(options(tmp_path, str(source)))
    assert added.recipe.python == "<3.11"
    assert [str(python) for python in load_matrix(added.matrix).python] == ["3.10"]


def test_a_matrix_behind_a_link_and_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "disk" / "my home").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "my home")
    source = write_source(tmp_path / "mine")
    linked = replace(options(tmp_path, str(source)), matrix=tmp_path / "link" / "matrix.yaml")
    assert load_matrix(run_add(linked).matrix).extensions == (source,)
    (source / "extension.yaml").unlink()
    spaced = replace(options(tmp_path, str(source)), matrix=tmp_path / "disk" / "my home" / "other.yaml")
    assert f"--matrix '{spaced.matrix}'" in next_steps(run_add(spaced))


def test_a_new_matrix_has_the_newest_versions() -> None:
    axes = new_axes(Selection())
    assert axes.torch[0] == max(new_axes(Selection(torch=("2.11", "2.15"))).torch)
