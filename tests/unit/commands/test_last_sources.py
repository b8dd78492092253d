"""What a dry run says about files that would be compiled again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands.building.build import build_text
from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.building.story import LocalRun
from builder.commands.plan import PlanOptions, plan
from builder.matrix.config import PathSource, Selection
from builder.matrix.load import read_plan
from builder.matrix.plan import Plan
from builder.result import BuildResult
from builder.store import Store
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import source_entries
from builder.wheels.toolchain.environments import Environments
from tests.unit.commands.test_cases import a_project, built
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD


def test_a_dry_run_knows_which_files_changed_before_the_source_is_copied(tmp_path: Path) -> None:
    folder, store = tmp_path / "ext", Store(tmp_path / "store")
    folder.mkdir()
    (folder / "op.cu").write_text("first")
    recipe = replace(make.recipe("ops"), folder=folder, source=PathSource(folder))
    run = LocalRun(store, LocalExecutor(Environments(store, "https://index.example")), None, {BUILD.extension: recipe})
    FolderBuilds(store).remember(BUILD, recipe, "d" * 64, source_entries(recipe))
    (folder / "op.cu").write_text("second")
    assert run.why(BUILD) == "must be compiled again, because these files changed since the last wheel: op.cu"


def test_a_version_that_is_published_with_other_files_is_named_before_and_after_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILDFARM_STORE", str(tmp_path / "store"))
    matrix, store = a_project(tmp_path / "project"), Store(tmp_path / "store")
    (tmp_path / "project" / "dist").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    _, recipes, planned = read_plan(matrix, Selection())
    [made], recipe, notes = planned.builds, recipes["toy"], FolderBuilds(store)
    (recipe.folder / "op.cu").write_text("first")
    first = built(store, matrix, "a" * 64, "1.0+cu130.torch2.11")
    notes.remember(made, recipe, first.digest, source_entries(recipe))
    notes.remember_published(first.wheel, first.sha256, [recipe])

    def planning() -> str:
        plan(PlanOptions(matrix=matrix))
        return " ".join(capsys.readouterr().err.split())

    says = "toy 1.0 is already published; raise the version in"
    assert not planning(), "nothing has changed"
    (recipe.folder / "op.cu").write_text("changed")
    assert says in planning()
    second = built(store, matrix, "b" * 64)
    notes.remember(made, recipe, second.digest, source_entries(recipe))
    assert says in planning(), "the last wheel is another one"
    result = BuildResult(made, second, None, False, 1, taken=notes.taken(made, recipe, second.digest))
    assert says in build_text(tmp_path, Plan((made,), ()), [result])
    result = BuildResult(made, first, None, False, 1, taken=notes.taken(made, recipe, first.digest))
    assert says not in build_text(tmp_path, Plan((made,), ()), [result])
