"""Two projects with an extension of one name build with one store at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from builder.commands.building.story import LocalRun
from builder.errors import BuildError
from builder.matrix.config import PathSource
from builder.store import Store
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain.environments import Environments
from tests.conftest import wait_until
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, TOOLCHAIN


class Tools:
    """Compilers that write to the log and fail when the test lets them go on."""

    toolchain = TOOLCHAIN

    def __init__(self) -> None:
        self.go, self.logs = threading.Event(), list[Path]()

    def compile(self, job: CompileJob, stage: Callable[[str], None]) -> NoReturn:
        """Raise BuildError."""
        stage("compile")
        job.log.write_text(job.source.joinpath("op.cu").read_text())
        self.logs.append(job.log)
        self.go.wait()
        raise BuildError("no wheel", stage="compile", log=job.log)


def project(folder: Path, source: str, tools: Tools, store: Store) -> tuple[threading.Thread, list[str]]:
    """A project that compiles its extension with these tools, and the stages that it shows."""
    folder.mkdir()
    (folder / "op.cu").write_text(source)
    recipe = replace(make.recipe("ops"), folder=folder, source=PathSource(folder))
    stages = list[str]()
    executor = LocalExecutor(Environments(store, "https://index.example"))
    run = LocalRun(store, executor, None, {BUILD.extension: recipe})
    run.progress.start(str(BUILD))

    def make_wheel() -> None:
        with pytest.raises(BuildError):
            run._make_wheel(BUILD, tools, run.log(BUILD), 1, stages.append)

    return threading.Thread(target=make_wheel), stages


@pytest.mark.parametrize("source", ["first", "other"])
def test_projects_wait_for_the_same_wheel_only_and_have_logs_of_their_own(tmp_path: Path, source: str) -> None:
    store, tools = Store(tmp_path / "store"), Tools()
    first, _ = project(tmp_path / "one", "first", tools, store)
    second, stages = project(tmp_path / "two", source, tools, store)
    waits = f"waiting for process {os.getpid()} in {Path.cwd()}, which makes the same wheel"
    shown = ["fetch", waits] if source == "first" else ["fetch", "compile"]
    first.start()
    try:
        wait_until(lambda: len(tools.logs) == 1, "the first compile")
        second.start()
        wait_until(lambda: stages == shown, lambda: f"{stages} shall be {shown}")
    finally:
        tools.go.set()
        first.join()
        second.join()
    assert [log.read_text() for log in tools.logs] == ["first", source]
