"""Builds that fail for a known cause: what is cured and compiled again, and when a run stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from builder.commands.building.preflight import BuildPlace
from builder.commands.building.story import LocalRun
from builder.matrix.config import Recipe
from builder.matrix.load import load_recipe
from builder.matrix.plan import Build
from builder.recipes.cures import PATCH
from builder.records import BuildRecord, Toolchain
from builder.store import Store
from builder.wheels import make as wheel_maker
from builder.wheels.failures import CompileError, compile_failure
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain.environments import Environments
from tests.unit.recipes.test_cures import recipe
from tests.unit.wheels.make_record import TOOLCHAIN, build_for, build_record

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


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("cures", [True, False])
def test_without_a_cure_nothing_is_written(recipe: Recipe, store: Store, *, cures: bool) -> None:
    before = (recipe.folder / "extension.yaml").read_bytes()
    tools = Compilers(store, "AT_DISPATCH_ALL_TYPES" if cures else "AT_CHECK")
    with pytest.raises(CompileError):
        made(run_of(recipe, tools, cures=cures))
    assert len(tools.compiles) == 1
    assert (recipe.folder / "extension.yaml").read_bytes() == before
    assert not (recipe.folder / PATCH).exists()


def test_builds_of_a_recipe_share_its_cures(recipe: Recipe, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    tools = Compilers(store, "AT_CHECK")
    tools.together = threading.Barrier(2)  # both fail before one is cured
    run = run_of(replace(recipe), tools)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda build: made(run, build), BUILDS)) == [False, False]
    assert [code.count("TORCH_CHECK") for code in tools.compiles] == [0, 0, 1, 1]
    assert capsys.readouterr().err.count("cured: a.cu: AT_CHECK") == 1
    assert all(made(run_of(load_recipe(recipe.folder), tools), build) for build in BUILDS)
