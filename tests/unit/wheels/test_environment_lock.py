"""Environments in the shared volume: locked while their containers live, deleted when nobody holds them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from builder.wheels.build_scripts import environment_lock


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name / "lib").mkdir(parents=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def locked(path: Path, *, wait: bool) -> int:
    descriptor = environment_lock.lock(path, wait=wait)
    assert descriptor is not None
    return descriptor


def test_environments_that_nobody_holds_are_deleted_whatever_their_age(tmp_path: Path) -> None:
    make(tmp_path, "wheels-v5", "buildfarm-own", "buildfarm-held", "buildfarm-left", "buildfarm-left-test")
    make(tmp_path, "buildfarm-older")  # of a run without locks
    (tmp_path / "buildfarm-left.lock").touch()
    os.utime(tmp_path / "buildfarm-held", (0, 0))
    held = locked(tmp_path / "buildfarm-held.lock", wait=False)
    environment_lock.sweep(tmp_path, "buildfarm-own")
    assert names(tmp_path) == ["buildfarm-held", "buildfarm-held.lock", "buildfarm-own", "wheels-v5"]
    os.close(held)
    environment_lock.sweep(tmp_path, "buildfarm-own")
    assert names(tmp_path) == ["buildfarm-own", "wheels-v5"]


def test_a_lock_file_that_was_deleted_in_between_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another container deletes the file with its environment between our opening and locking it."""
    path = tmp_path / "buildfarm-own.lock"
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = locked(path, wait=True)
    assert len(calls) == 2
    assert os.path.samestat(path.stat(), os.fstat(held))
    assert environment_lock.lock(path, wait=False) is None
    os.close(held)
