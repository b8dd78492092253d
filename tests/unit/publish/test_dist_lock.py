"""Two farms that publish into one folder wait for each other."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from builder.commands.building import story
from builder.matrix.plan import Plan
from builder.publish.dist import Published


def test_a_farm_holds_the_folder_while_it_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = []

    def publish(dist: Path, *_: object) -> Published:
        descriptor = os.open(dist, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        published.append(dist)
        return Published([], [], [])

    monkeypatch.setattr(story, "publish_wheels", publish)
    story.publish(tmp_path / "dist", Plan((), ()), [])
    assert published == [tmp_path / "dist"]
    descriptor = os.open(tmp_path / "dist", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
