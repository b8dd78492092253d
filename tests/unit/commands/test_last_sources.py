"""What a build says about files that it compiles again."""

from __future__ import annotations

from pathlib import Path

from builder.commands.building.build_run import BuildRun
from builder.commands.building.folder_builds import FolderBuilds
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import PathSource, Recipe
from builder.matrix.plan import Build
from builder.store import Store
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import source_entries
from builder.wheels.toolchain.environments import Environments


def test_a_dry_run_knows_which_files_changed_before_the_source_is_copied(tmp_path: Path) -> None:
    folder, store = tmp_path / "ext", Store(tmp_path / "store")
    folder.mkdir()
    (folder / "op.cu").write_text("first")
    recipe = Recipe("ext", "1.0", folder=folder, source=PathSource(folder))
    cell = Cell(Torch(2, 11, 0), Cuda(13, 0), Python(3, 12))
    build = Build(
        "ext", "1.0", AbiClass.CPYTHON, cell.torch, cell.cuda, (cell.python,), (Arch(9, 0),),
        Platform.LINUX_X86_64, (cell,),
    )  # fmt: skip
    run = BuildRun(store, LocalExecutor(Environments(store, "https://index.example")), None, {"ext": recipe})
    FolderBuilds(store).remember(build, recipe, "d" * 64, source_entries(recipe))
    (folder / "op.cu").write_text("second")
    assert run.why(build) == "must be compiled again, because these files changed since the last wheel: op.cu"
