"""`build` in the folder of a project: files beside the source, wheels of earlier runs in dist/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.commands.building import story
from builder.commands.building.build import run_build
from builder.errors import Exit
from builder.wheels import make
from builder.wheels.make import compile_wheel
from tests.fixtures.small_project import SmallProject, small_project

pytestmark = pytest.mark.usefixtures("headers")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallProject]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        small_project(tmp_path_factory.mktemp("folder"), monkeypatch) as ours,
    ):
        ours.recipe("tiny")
        ours.matrix("tiny")
        yield ours


def test_a_log_that_grows_in_the_source_folder_is_named_and_does_not_fail_the_build(
    project: SmallProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = project.root / "tiny" / "src" / "build.log"

    def growing(*args: Any, **kwargs: Any) -> Any:
        log.write_text("one more line\n")
        return compile_wheel(*args, **kwargs)

    monkeypatch.setattr(make, "compile_wheel", growing)
    ((first,), (second,)) = (run_build(project.options())[1] for _ in range(2))
    assert (first.exit, first.error, first.reused) == (Exit.OK, None, False)
    assert "build.log changed during the build" in capfd.readouterr().err
    assert (second.exit, second.reused) == (Exit.OK, False), "the log is a source file, and it changed"
    assert run_build(project.options())[1][0].reused


def test_a_new_dist_is_no_source_of_the_folder_around_it(project: SmallProject) -> None:
    run_build(project.options())
    assert Path(project.root, "dist", ".gitignore").read_text() == "*\n"


def test_a_slow_build_names_the_header_that_a_cuda_file_does_not_need(
    project: SmallProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (project.root / "tiny" / "src" / "kernel.cu").write_text("#include <torch/extension.h>\n")
    monkeypatch.setattr(story, "_SLOW", 0)
    run_build(project.options())
    said = " ".join(capfd.readouterr().err.split())
    assert "s: kernel.cu includes <torch/extension.h>" in said
    assert "<torch/types.h> is enough for this file" in said
