"""`plan --new-torch` with a package index on this machine, and the workflow that opens an issue for a new release."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import MissingToolError
from builder.publish.ci.workflows import MAIN, WorkflowOptions, workflows
from tests.conftest import BUILDFARM
from tests.unit.loopback import PackageIndex, only, pure_wheel, served
from tests.unit.publish.ci.conftest import MATRIX, RECIPE
from tests.unit.publish.ci.steps import program, run_step, step_named

NEWEST = MATRIX.replace("2.11.0", "2.15.0").replace("13.0", "13.2")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """An index with the newest torch that buildfarm knows."""
    with served(tmp_path / "index") as served_index:
        only(served_index, tmp_path / "cache", monkeypatch)
        add_torch(served_index, "2.15.0")
        yield served_index


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    (tmp_path / "project" / "ops").mkdir(parents=True)
    (tmp_path / "project" / "ops" / "extension.yaml").write_text(RECIPE)
    (tmp_path / "project" / "matrix.yaml").write_text(NEWEST)
    return tmp_path / "project" / "matrix.yaml"


PYTHONS = ("cp311-cp311", "cp312-cp312", "cp313-cp313", "cp313-cp313t")


def add_torch(
    index: PackageIndex, version: str, pythons: Sequence[str] = PYTHONS, *, requires_python: str = ""
) -> None:
    for python in pythons:
        for platform in ("manylinux_2_28_x86_64", "win_amd64"):
            tag = f"{python}-{platform}"
            pure_wheel(index.root / "default", "torch", version, tag=tag, requires_python=requires_python)


def new_torch(matrix: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["plan", "--matrix", str(matrix), "--new-torch", *options])
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def test_nothing_is_new(index: PackageIndex, matrix: Path) -> None:
    assert new_torch(matrix) == ""
    assert json.loads(new_torch(matrix, "--json")) == {"releases": []}
    assert index.requested


@pytest.mark.usefixtures("index")
def test_releases_that_buildfarm_knows_and_that_give_cells(matrix: Path) -> None:
    matrix.write_text(NEWEST.replace("2.15.0", "2.11, 2.13"))
    assert new_torch(matrix).startswith("New torch releases: 2.14.1 and 2.15.0 matrix.yaml does not have torch 2.14.1,")
    text = new_torch(matrix)
    assert "which adds 1 build for 1 cell. To build them, add 2.14 to the list `torch` in matrix.yaml." in text
    assert "add 2.15 to the list" in text
    matrix.write_text(NEWEST.replace("2.15.0", "2.11, 2.13").replace("13.2", "12.6"))
    assert new_torch(matrix).startswith("New torch release: 2.14.1 "), "torch 2.15 has no CUDA 12.6"


def test_a_release_of_the_index_that_buildfarm_does_not_know(index: PackageIndex, matrix: Path) -> None:
    add_torch(index, "2.99.0")
    text = new_torch(matrix)
    assert text.startswith("New torch release: 2.99.0 The package index has torch 2.99.0. To build for it, run")
    add_torch(index, "2.99.1")
    assert json.loads(new_torch(matrix, "--json")) == {
        "releases": [{"torch": "2.99.1", "known": False, "builds": None, "cells": None}]
    }


def test_a_release_that_needs_a_newer_python(index: PackageIndex, matrix: Path) -> None:
    newer = ("cp313-cp313", "cp314-cp314", "cp316-cp316")
    add_torch(index, "2.99.0", newer, requires_python=">=3.13")
    assert "The package index has torch 2.99.0" in new_torch(matrix)


def test_an_index_that_does_not_answer_is_an_error(matrix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    done = CliRunner().invoke(app, ["plan", "--matrix", str(matrix), "--new-torch"])
    assert isinstance(done.exception, MissingToolError)


#: `gh`, which keeps the titles of issues in a file.
GH = """\
set -eu
[ "$GH_TOKEN" = token ] && [ "$GH_REPO" = owner/name ]
case "$1 $2" in
"issue list") cat "$HOME/issues" ;;
"issue create") echo "$4" >> "$HOME/issues"; cp "$6" "$HOME/body" ;;
esac
"""


def test_one_issue_is_opened_for_a_release(index: PackageIndex, matrix: Path, tmp_path: Path) -> None:
    add_torch(index, "2.99.0")
    steps = yaml.safe_load(workflows(WorkflowOptions("./buildfarm"))[MAIN])["jobs"]["new-torch"]["steps"]
    programs = program(matrix.parent, "gh", GH)
    (programs / "buildfarm").symlink_to(BUILDFARM)
    (tmp_path / "issues").write_text("New torch release: 2.9\n")
    for _ in ("first night", "second night"):
        look = step_named(steps, "Look for a release of torch that matrix.yaml does not have")
        looked = run_step(look, matrix.parent, programs)
        assert "New torch release: 2.99.0" in looked.summary, looked.printed
        given = {"GH_TOKEN": "token", "GH_REPO": "owner/name", "HOME": str(tmp_path)}
        opened = run_step(step_named(steps, "Open an issue"), matrix.parent, programs, **given)
        assert opened.code == 0, opened.printed
    assert (tmp_path / "issues").read_text() == "New torch release: 2.9\nNew torch release: 2.99.0\n"
    assert "has torch 2.99.0" in (tmp_path / "body").read_text()
