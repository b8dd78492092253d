"""Runs of `build`: their order, interruption, cures of known causes, a store of two projects, wheels of `adopt`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from builder.commands.building.preflight import BuildPlace, places
from builder.commands.building.story import LocalRun
from builder.commands.targets import foreign_wheels
from builder.errors import BuildError
from builder.formats import sha256_of
from builder.matrix.axes import Cell, Python
from builder.matrix.config import PathSource, Recipe
from builder.matrix.load import load_recipe
from builder.matrix.plan import Build
from builder.progress.display import WAITS
from builder.recipes.cures import PATCH
from builder.records import BuildRecord, Toolchain
from builder.store import Store, work_name
from builder.wheels import make as wheel_maker
from builder.wheels.failures import CompileError, compile_failure
from builder.wheels.job import Compiled, CompileJob, Executor, build_digest
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import source_digest
from builder.wheels.toolchain.environments import Environments
from tests.conftest import PATIENCE, wait_until
from tests.unit.fake_clock import FakeClock
from tests.unit.loopback import pure_wheel
from tests.unit.matrix import make
from tests.unit.recipes.test_cures import recipe
from tests.unit.wheels.make_record import BUILD, TOOLCHAIN, build_for, build_record

FIRST = BUILD
SECOND = replace(FIRST, pythons=(Cell.parse("torch2.6.0-cu124-cp311").python,))
OTHER = replace(FIRST, extension="other")


def order(
    *missing: Build, stored: Sequence[Build] = (), builds: int = 1, jobs: int = 1, in_turn: bool = False
) -> dict[Build, BuildPlace]:
    """The places of builds that share objects."""
    executor = SimpleNamespace(shares_objects=True, compiles_in_turn=in_turn)
    found = dict.fromkeys(stored, True) | dict.fromkeys(missing, False)
    return places(found, builds, jobs, cast("Executor", executor))


def test_the_second_python_waits_for_the_first_and_a_different_extension_does_not() -> None:
    found, waits = order(FIRST, SECOND, OTHER), list[str]()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found[SECOND].wait, lambda: waits.append("second"))
        found[OTHER].wait(lambda: waits.append("other"))
        wait_until(lambda: waits == ["second"], "the second build")
        found[OTHER].release()
        assert not waiting.done()
        found[FIRST].release()
        waiting.result(timeout=PATIENCE)


def test_builds_of_all_groups_start_in_turn() -> None:
    third, other = replace(SECOND, pythons=(Python(3, 14),)), replace(OTHER, pythons=SECOND.pythons)
    found = order(FIRST, SECOND, third, OTHER, other)
    assert sorted(found, key=lambda build: found[build].rank) == [FIRST, OTHER, SECOND, other, third]


@pytest.mark.parametrize(
    ("builds", "build", "in_turn", "jobs"),
    [
        ([FIRST, SECOND], FIRST, False, 8),
        ([FIRST, SECOND], SECOND, False, 2),
        ([FIRST, SECOND], SECOND, True, 8),
        ([FIRST, SECOND, OTHER], FIRST, False, 2),  # builds that wait for the other group's first build may start
        ([FIRST, SECOND, OTHER], SECOND, True, 2),
    ],
)
def test_a_build_gets_the_compilers_of_builds_that_wait_for_it(
    builds: list[Build], build: Build, jobs: int, *, in_turn: bool
) -> None:
    assert order(*builds, builds=4, jobs=2, in_turn=in_turn)[build].jobs == jobs


def test_a_build_does_not_wait_for_what_is_not_compiled() -> None:
    order(SECOND, stored=[FIRST])[SECOND].wait(lambda: pytest.fail("it waits"))


PROGRAM = """\
import os, signal, sys, time
from pathlib import Path
from builder import process
from builder.commands.building.story import BuildRun
from builder.log import verbosity
from builder.store import Store

moment, root = sys.argv[1:]
process.handle_signals()
# Signals now reach only the thread of the build.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

class Run(BuildRun):
    stored = prove = None
    log = lambda self, build: self.store.log(build)

    def start(self, builds):
        return 1, self.ordered(builds)

    def ordered(self, builds):
        yield from builds
        if moment == "submit":
            raise KeyboardInterrupt

    def make(self, build, log, stage):
        if moment == "other thread":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            process.raise_if_interrupted()
            time.sleep(0.02)
        print("the build went on")

verbosity.quiet = True
try:
    Run(Store(Path(root)), {}, None).build_all({"build": False})
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("moment", ["other thread", "submit"])
def test_a_signal_ends_the_running_builds(tmp_path: Path, moment: str) -> None:
    argv = [sys.executable, "-c", PROGRAM, moment, str(tmp_path / "store")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "interrupted\n", done.stderr


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
    run = LocalRun(store, {BUILD.extension: recipe}, None, executor)
    run._places = {BUILD: BuildPlace(1)}
    run.progress.start(str(BUILD))
    return run


def compile_in_thread(run: LocalRun, tools: Tools) -> tuple[threading.Thread, list[str]]:
    """A thread that compiles the extension with these tools, and the stages that it shows."""
    stages = list[str]()

    def make_wheel() -> None:
        with pytest.raises(BuildError):
            run._make_wheel(BUILD, tools, run.recipes[BUILD.extension], run.log(BUILD), stages.append)

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
    assert run._make_wheel(BUILD, Tools(), recipe, run.log(BUILD), lambda _: None) == (stored, True)


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
    job = CompileJob(BUILD, make.recipe("ops"), TOOLCHAIN, tmp_path, tmp_path / "log", 1, "own")
    raw = wheel_maker.compile_wheel(Waits(), job, lambda _: None)
    assert clock() - raw.clock == 30


def test_the_origin_has_no_secret_of_the_url(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "ops", "1.0")
    sha256 = sha256_of(wheel)
    kept = tmp_path / "cache" / "wheels" / sha256 / wheel.name  # a kept wheel is not downloaded again
    kept.parent.mkdir(parents=True)
    wheel.rename(kept)
    place = "dl.example/basic/team/t/{token}/python/" + wheel.name
    url = f"https://user:s3cr3t@{place.format(token='s3cr3ts3cr3t')}?token=s3cr3ts3cr3t#sha256={sha256}"
    (found,) = foreign_wheels([url], tmp_path / "cache", "", ())
    assert (found.path, found.origin) == (kept, f"https://{place.format(token='***')}")


__all__ = ["recipe"]

BUILDS = [build_for(f"torch2.{minor}.0-cu130-cp312") for minor in (11, 12)]


class Compilers(LocalExecutor):
    """Compilers that refuse some names, and never more than one at a time."""

    def __init__(self, store: Store, *refused: str, again: bool = False) -> None:
        super().__init__(Environments(store, ""))
        self.toolchain: Toolchain = TOOLCHAIN
        self.compiles: list[str] = []  # the code of each compile
        self.together = threading.Barrier(1)
        self._refused, self._again = refused, again

    def prepare(self, *_: object, **__: object) -> Compilers:  # type: ignore[override]
        return self

    def compile(self, job: CompileJob, _: Callable[[str], None]) -> CompileJob:
        code = (job.source / "a.cu").read_text()
        self.compiles.append(code)
        if len(self.compiles) <= self.together.parties:
            self.together.wait()
        names = [name for name in self._refused if self._again or f" {name}" in code]
        lines = [f'{job.source}/a.cu(3): error: identifier "{name}" is undefined' for name in names[:1]]
        if lines:
            raise compile_failure(job, 1, str(job.source), lines)
        return job


@pytest.fixture
def wheels_without_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools make wheels by themselves, and nothing is repaired."""

    def repaired(job: CompileJob, *_: object, **__: object) -> tuple[Path, BuildRecord]:
        (wheel := job.work / "toy-1.0-cp312-cp312-linux_x86_64.whl").write_text(str(job.build))
        return wheel, build_record()

    monkeypatch.setattr(wheel_maker, "compile_wheel", lambda tools, job, stage: tools.compile(job, stage))
    monkeypatch.setattr(wheel_maker, "repair_wheel", repaired)


def run_of(recipe: Recipe, tools: Compilers, *, cures: bool = True) -> LocalRun:
    found = LocalRun(tools.environments.store, {"toy": recipe}, None, tools, cures=cures)  # type: ignore[arg-type]
    found._places = {build: BuildPlace(1) for build in BUILDS}
    for build in BUILDS:
        found.progress.start(str(build))
    return found


def made(run: LocalRun, build: Build = BUILDS[0]) -> bool:
    """Whether the wheel was there before."""
    return run.make(build, run.log(build), lambda _: None)[1]


@pytest.mark.usefixtures("wheels_without_compilers")
def test_a_build_is_cured_until_there_is_a_wheel(
    recipe: Recipe, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = Compilers(store, "AT_CHECK")
    assert made(run_of(recipe, tools)) is False
    assert [code.count("TORCH_CHECK") for code in tools.compiles] == [0, 1]
    line = f"{BUILDS[0]}: cured: a.cu: AT_CHECK → TORCH_CHECK (torch 1.5 removed it)"
    assert line in capsys.readouterr().err.splitlines()
    assert made(run_of(load_recipe(recipe.folder), tools)) is True
    assert len(tools.compiles) == 2


@pytest.mark.usefixtures("wheels_without_compilers")
def test_an_error_that_stays_ends_the_build(recipe: Recipe, store: Store) -> None:
    tools = Compilers(store, "AT_CHECK", again=True)
    run = run_of(recipe, tools)
    with pytest.raises(CompileError, match="AT_CHECK") as error:
        made(run)
    assert run._places[BUILDS[0]].compiled.is_set(), "the builds that wait for it go on"
    assert len(tools.compiles) == 2
    assert error.value.hints[-2:] == (
        "`AT_CHECK` is not cured: no file has code of the form that the cure knows",
        f"the cures so far are in {recipe.folder / PATCH}",
    )


@pytest.mark.usefixtures("wheels_without_compilers")
@pytest.mark.parametrize("cures", [True, False])
def test_without_a_cure_nothing_is_written(recipe: Recipe, store: Store, *, cures: bool) -> None:
    before = (recipe.folder / "extension.yaml").read_bytes()
    tools = Compilers(store, "AT_DISPATCH_ALL_TYPES" if cures else "AT_CHECK")
    with pytest.raises(CompileError):
        made(run_of(recipe, tools, cures=cures))
    assert len(tools.compiles) == 1
    assert (recipe.folder / "extension.yaml").read_bytes() == before
    assert not (recipe.folder / PATCH).exists()


@pytest.mark.usefixtures("wheels_without_compilers")
def test_builds_of_a_recipe_share_its_cures(recipe: Recipe, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    tools = Compilers(store, "AT_CHECK")
    tools.together = threading.Barrier(2)  # both fail before one is cured
    run = run_of(replace(recipe), tools)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda build: made(run, build), BUILDS)) == [False, False]
    assert [code.count("TORCH_CHECK") for code in tools.compiles] == [0, 0, 1, 1]
    assert capsys.readouterr().err.count("cured: a.cu: AT_CHECK") == 1
    assert all(made(run_of(load_recipe(recipe.folder), tools), build) for build in BUILDS)
