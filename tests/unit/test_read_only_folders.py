"""Folders that a build left without write permission, and a farm that is not root: the next run of the job succeeds."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.store import Store
from builder.wheels import build_dir
from builder.wheels.build_dir import fixed_folder, folder_of

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of nobody; pytest's own folders are closed to that user."""
    made = Path(tempfile.mkdtemp(prefix="read-only-", dir="/var/tmp"))
    if os.geteuid() == 0:
        os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def as_nobody(step: Callable[[], None]) -> None:
    """Run a function in a process without the rights of root; fails when it raises."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            step()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child never returns to pytest
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def leave_read_only(place: Path) -> None:
    """What a build leaves: folders that nobody may write, or even list, and a link out of the folder."""
    for name, mode in (("src", 0o500), ("closed", 0o000)):
        (place / name / "deep").mkdir(parents=True)
        (place / name / "deep" / "file").touch()
        (place / name / "deep").chmod(mode)
        (place / name).chmod(mode)
    (place / "link").symlink_to("/var/tmp")


def test_a_scratch_folder_with_read_only_folders_is_deleted(folder: Path) -> None:
    def step() -> None:
        store = Store(folder)
        for _ in range(2):
            with store.work("job") as work:
                assert list(work.iterdir()) == []
                leave_read_only(work)
            assert not work.exists()
        leave_read_only(folder / "work" / "abandoned")
        Store(folder).clear_abandoned()
        assert list((folder / "work").iterdir()) == []

    as_nobody(step)


def test_the_folder_of_a_build_with_read_only_folders_is_emptied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_dir, "ROOT", folder)
    monkeypatch.setattr(build_dir, "WORK_BYTES", 0)

    def step() -> None:
        killed = folder_of("demo")
        killed.mkdir(0o700)
        leave_read_only(killed)
        for _ in range(2):
            with fixed_folder("demo", folder / "otherwise") as place:
                assert place == killed
                assert list(place.iterdir()) == [], "otherwise the source would be moved to src/src"
                leave_read_only(place)
            assert not place.exists()

    as_nobody(step)
