"""Two projects with an extension of one name build with one store at the same time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from builder.commands.building.story import LocalRun
from builder.errors import BuildError
from builder.matrix.config import PathSource
from builder.progress.display import WAITS
from builder.store import Store, work_name
from builder.wheels import make as wheel_maker
from builder.wheels.job import Compiled, CompileJob, build_digest
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import source_digest
from builder.wheels.toolchain.environments import Environments
from tests.conftest import wait_until
from tests.unit.fake_clock import FakeClock
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, TOOLCHAIN, build_record


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


def project(folder: Path, source: str, store: Store) -> LocalRun:
    """A project with one extension."""
    folder.mkdir()
    (folder / "op.cu").write_text(source)
    recipe = replace(make.recipe("ops"), folder=folder, source=PathSource(folder))
    executor = LocalExecutor(Environments(store, "https://index.example"))
    run = LocalRun(store, executor, None, {BUILD.extension: recipe})
    run.progress.start(str(BUILD))
    return run


def compile_in_thread(run: LocalRun, tools: Tools) -> tuple[threading.Thread, list[str]]:
    """A thread that compiles the extension with these tools, and the stages that it shows."""
    stages = list[str]()

    def make_wheel() -> None:
        with pytest.raises(BuildError):
            run._make_wheel(BUILD, tools, run.recipes[BUILD.extension], run.log(BUILD), 1, stages.append)

    return threading.Thread(target=make_wheel), stages


@pytest.mark.parametrize("source", ["first", "other"])
def test_projects_wait_for_the_same_wheel_only_and_have_logs_of_their_own(tmp_path: Path, source: str) -> None:
    store, tools = Store(tmp_path / "store"), Tools()
    first, _ = compile_in_thread(project(tmp_path / "one", "first", store), tools)
    second, stages = compile_in_thread(project(tmp_path / "two", source, store), tools)
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


def test_a_wheel_that_another_process_made_meanwhile_is_not_built_here(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    run = project(tmp_path / "one", "first", store)
    recipe = run.recipes[BUILD.extension]
    digest = build_digest(BUILD, recipe, TOOLCHAIN, source_digest(recipe))
    with store.work(work_name(digest)) as work:
        (work / "ops.whl").touch()
        stored = store.add(digest, work / "ops.whl", build_record())
    assert run._make_wheel(BUILD, Tools(), recipe, run.log(BUILD), 1, lambda _: None) == (stored, True)


def test_a_compile_begins_when_it_has_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a build says whether its source is slow to compile."""
    clock = FakeClock()

    class Waits:
        toolchain = TOOLCHAIN

        def compile(self, job: CompileJob, stage: Callable[[str], None]) -> Compiled:
            for text in ("environment", f"{WAITS}process 7 in /b", "compile"):
                stage(text)
                clock.step(30)
            return Compiled(job.raw, frozenset(), None)

    for name in ("check_source", "check_wheel"):
        monkeypatch.setattr(wheel_maker, name, lambda *_: None)
    monkeypatch.setattr(time, "monotonic", clock)
    job = CompileJob(BUILD, make.recipe("ops"), TOOLCHAIN, tmp_path, tmp_path, tmp_path / "log", 1, "0" * 64, "own")
    raw = wheel_maker.compile_wheel(Waits(), job, lambda _: None)
    assert clock() - raw.clock == 30
