"""Two farms that publish into one folder wait for each other."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from builder.commands.building import story
from builder.matrix.plan import Plan
from builder.publish.dist import Published


def is_locked(dist: Path) -> bool:
    descriptor = os.open(dist, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_farm_holds_the_folder_while_it_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def publish(dist: Path, *_: object) -> Published:
        seen.append(is_locked(dist))
        return Published([], [], [])

    monkeypatch.setattr(story, "publish_wheels", publish)
    story.publish(tmp_path / "dist", Plan((), ()), [])
    assert seen == [True]
    assert not is_locked(tmp_path / "dist")
