"""The Pythons of a machine: found by their version, with their headers, wherever they are kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.matrix.axes import Python
from builder.wheels.toolchain.pythons import Interpreter, find_python

pytestmark = pytest.mark.usefixtures("fresh_eyes")

OLD = Python(3, 4)  # a version no machine of today has, so that only the faked ones are found


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "pyenv"
    (root / "versions").mkdir(parents=True)
    monkeypatch.setenv("PYENV_ROOT", str(root))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PATH", str(tmp_path))  # uv asks every Python on it
    return root / "versions"


def python(folder: Path, says: str, status: int = 0) -> Path:
    """A program that answers the probe."""
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_python_that_runs_the_farm_is_found() -> None:
    found = find_python(Python(*sys.version_info[:2]))
    assert found is not None
    assert found.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_the_newest_patch_of_pyenv_is_taken(pyenv: Path) -> None:
    python(pyenv / "3.4.9", "3.4.9 False True")
    newest = python(pyenv / "3.4.10", "3.4.10 False True")
    python(pyenv / "3.40.11", "3.40.11 False True")
    assert find_python(OLD) == Interpreter(newest, "3.4.10", headers=True)


def test_one_with_headers_goes_before_a_newer_one_without(pyenv: Path) -> None:
    assert find_python(OLD) is None
    find_python.cache_clear()
    only = python(pyenv / "3.4.10", "3.4.10 False False")
    assert find_python(OLD) == Interpreter(only, "3.4.10", headers=False)
    find_python.cache_clear()
    older = python(pyenv / "3.4.9", "3.4.9 False True")
    assert find_python(OLD) == Interpreter(older, "3.4.9", headers=True)


@pytest.mark.parametrize(("wanted", "folder"), [("3.4", "3.4.10"), ("3.4t", "3.4.10t")])
def test_free_threaded_and_plain_are_two_pythons(wanted: str, folder: str, pyenv: Path) -> None:
    paths = {
        "3.4.10": python(pyenv / "3.4.10", "3.4.10 False True"),
        "3.4.10t": python(pyenv / "3.4.10t", "3.4.10 True True"),
    }
    found = find_python(Python.parse(wanted))
    assert found is not None
    assert found.path == paths[folder]


@pytest.mark.parametrize(
    ("says", "status"),
    [
        pytest.param("3.5.1 False True", 0, id="another version"),
        pytest.param("3.4.10 True True", 0, id="free-threaded, though its folder does not say so"),
        pytest.param("3.4.10 False True", 1, id="it fails"),
        pytest.param("welcome to my wrapper of python", 0, id="it talks"),
        pytest.param("", 0, id="it is silent"),
        pytest.param(None, 0o755, id="no program"),
        pytest.param(None, 0o644, id="not executable"),
    ],
)
def test_what_does_not_answer_as_that_python_is_not_taken(says: str | None, status: int, pyenv: Path) -> None:
    path = python(pyenv / "3.4.10", says or "", status)
    if says is None:
        path.write_bytes(b"\0\1")
        path.chmod(status)
    (pyenv / "3.4.9" / "bin").mkdir(parents=True)
    (pyenv / "3.4.9" / "bin" / "python").symlink_to("gone")
    assert find_python(OLD) is None
