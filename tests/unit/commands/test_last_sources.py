"""What a dry run says about files that would be compiled again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.commands.building.folder_builds import FolderBuilds
from builder.commands.building.story import LocalRun
from builder.matrix.config import PathSource
from builder.store import Store
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import source_entries
from builder.wheels.toolchain.environments import Environments
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
