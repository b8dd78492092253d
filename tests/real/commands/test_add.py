"""`buildfarm build SOURCE` writes a recipe and builds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.__main__ import run_command
from builder.errors import Exit
from tests.fixtures.small_project import MODULE, SmallProject, small_project
from tests.unit.loopback import PYTHON


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    with small_project(tmp_path / "project", monkeypatch) as made:
        yield made


@pytest.mark.usefixtures("headers")
def test_build_source_adds_and_builds(
    project: SmallProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package = project.recipe("small_ops", source=MODULE.format(answer=1))
    (package.parent.parent / "extension.yaml").unlink()
    (package.parent / "pyproject.toml").write_text(
        (package.parent / "pyproject.toml").read_text() + '[project]\nname = "small-ops"\nversion = "1.0"\n'
    )
    (project.root / "matrix.yaml").write_text(
        f"torch: [2.11.0]\ncuda: [13.0]\npython: [{PYTHON}]\nextensions: []\ntorch_index: {project.index.torch_index}\n"
    )
    monkeypatch.chdir(project.root)
    argv = ["build", "small_ops/src", "--executor", "local", "--store", str(project.store)]
    monkeypatch.setattr(sys, "argv", ["buildfarm", *argv, "--arch", "bad"])
    assert run_command() == Exit.USAGE
    assert not (package / "extension.yaml").exists(), "a recipe is written only for a valid command line"
    for matrix in ("matrix.yaml", "new/matrix.yaml"):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["buildfarm", *argv, "--dry-run", "--matrix", matrix])
        before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
        assert run_command() == Exit.OK
        assert {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()} == before
        out, err = capfd.readouterr()
        assert "would write small_ops/src/extension.yaml" in err
        assert out.startswith("1 to compile, 0 already built\n  compile        small_ops-1.0-")
    monkeypatch.setattr(sys, "argv", ["buildfarm", *argv])
    code = run_command()
    out, err = capfd.readouterr()
    assert "wrote small_ops/src/extension.yaml" in err
    assert "no CUDA file" in err
    assert (code, len(list((project.root / "dist").glob("*.whl")))) == (0, 1), err
    assert "1 cell" in out or "small_ops-1.0" in out
