"""What uv really installs from an index, against what the reader of archives says of the same wheels."""

import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from builder.wheels.toolchain.uv import find_uv
from tests.conftest import run
from tests.fixtures.zip_archives import ARCHIVES
from tests.unit.loopback import serving

NAME = "t0-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: t0\nVersion: 1.0\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The URL of an index for each archive."""
    for number, (content, _) in enumerate(ARCHIVES.values()):
        folder = tmp_path / str(number) / "t0"
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(content)
        (folder / f"{NAME}.metadata").write_text(METADATA)
        (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{NAME}" data-core-metadata="true">{NAME}</a>')
    with serving(partial(_Quiet, directory=str(tmp_path))) as address:
        yield f"http://{address}"


def test_uv_installs_what_has_no_fault_and_nothing_else(tmp_path: Path, index: str) -> None:
    """By a path, and from an index: uv reads the list of files in one case, and the local headers in the other."""
    common = ("pip", "install", "-q", "--no-config", "--no-cache", "--no-deps", "--python", sys.executable)
    taken = {}
    for number, case in enumerate(ARCHIVES):
        sources = [
            ("--offline", str(tmp_path / str(number) / "t0" / NAME)),
            ("--default-index", f"{index}/{number}", "t0"),
        ]
        done = [
            run(find_uv(), *common, "--target", str(tmp_path / f"{number}-{kind}"), *words).code
            for kind, words in enumerate(sources)
        ]
        taken[case] = done == [0, 0]
    assert taken == {case: not fault for case, (_, fault) in ARCHIVES.items()}
