"""The script that holds a build's environment in the engine's volume, and sweeps those that nobody holds."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from builder.images.files import templates


@pytest.fixture(scope="module")
def hold() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hold", templates() / "hold.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name / "lib").mkdir(parents=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_nobody_holds_is_swept_whatever_its_age(hold: ModuleType, tmp_path: Path) -> None:
    make(tmp_path, "wheels-v5", "buildfarm-own", "buildfarm-held", "buildfarm-left", "buildfarm-left-test")
    make(tmp_path, "buildfarm-older")  # of a farm that knew no locks
    (tmp_path / "buildfarm-left.lock").touch()
    os.utime(tmp_path / "buildfarm-held", (0, 0))
    held = hold.lock(tmp_path / "buildfarm-held.lock", wait=False)
    hold.sweep(tmp_path, "buildfarm-own")
    assert names(tmp_path) == ["buildfarm-held", "buildfarm-held.lock", "buildfarm-own", "wheels-v5"]
    os.close(held)
    hold.sweep(tmp_path, "buildfarm-own")
    assert names(tmp_path) == ["buildfarm-own", "wheels-v5"]


def test_a_lock_that_was_swept_in_between_is_taken_anew(
    hold: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another opens the file, deletes it with its environment, and only then is it locked here."""
    path = tmp_path / "buildfarm-own.lock"
    real, calls = hold.fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(hold.fcntl, "flock", flock)
    held = hold.lock(path, wait=True)
    assert len(calls) == 2
    assert os.path.samestat(path.stat(), os.fstat(held))
    assert hold.lock(path, wait=False) is None
    os.close(held)
