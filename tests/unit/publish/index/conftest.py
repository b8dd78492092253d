"""The command line and a new index, for the tests of the index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.__main__ import run_command
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository

#: Runs buildfarm with these words; returns the exit code, stdout and stderr.
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(Folder(tmp_path / "index"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["buildfarm", *map(str, words)])
        code = run_command()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
