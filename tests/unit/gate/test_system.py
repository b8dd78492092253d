"""Small facts of the system: sizes as text, mapped files."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from builder.gate.amounts import size_text
from builder.gate.system.files import mapped_files


@pytest.mark.parametrize(
    ("size", "text"),
    [(5, "5 bytes"), (484 << 10, "484 KiB"), (4 << 20, "4.0 MiB"), (2**30 - 1, "1024.0 MiB"), (100 << 30, "100.0 GiB")],
)
def test_a_size_as_text(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_mapped_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "with a space.so"
    path.write_bytes(b"x")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert str(path) in mapped_files()
    assert str(path) not in mapped_files()
