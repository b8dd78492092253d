"""A new index, for the tests of the index."""

from pathlib import Path

import pytest

from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(Folder(tmp_path / "index"))
