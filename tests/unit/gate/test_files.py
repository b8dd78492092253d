"""Files that a process of the extension may have replaced are read with limits and without waiting."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from builder.gate.system.files import read_regular


def test_the_start_or_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 4) == b"0123"
    assert read_regular(tmp_path / "file", 4, end=True) == b"6789"
    assert read_regular(tmp_path / "file", 400, end=True) == b"0123456789"


def test_a_large_limit_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    tracemalloc.start()
    assert read_regular(tmp_path / "file", 4 << 30) == b"x"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_pipes_devices_and_links_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "other").symlink_to(tmp_path / "file")
    for name in ("pipe", "link", "other", "missing"):
        with pytest.raises(OSError):  # noqa: PT011 (the kernel's message)
            read_regular(tmp_path / name, 10)
