"""Differences between two wheels, file by file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.wheelfile.archive import differences
from tests.conftest import coded

NAME = "ops-1.0-cp312-cp312-linux_x86_64.whl"


def wheel(folder: Path, files: Mapping[str, str], *, name: str = NAME, year: int = 1980) -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (year, 1, 1, 0, 0, 0)), content)
    return folder / name


def between(tmp_path: Path, one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    return [str(each) for each in differences(wheel(tmp_path / "one", one), wheel(tmp_path / "two", two))]


def test_files_that_differ(tmp_path: Path) -> None:
    one = {"ops/a.py": "a", "ops/c.py": "c", "ops/_C.so": "one"}
    two = {"ops/c.py": "c", "ops/_C.so": "two", "ops/d.py": ""}
    assert between(tmp_path, one, one) == []
    assert between(tmp_path, one, two) == [
        "ops/_C.so: differs",
        "ops/a.py: only in the first",
        "ops/d.py: only in the second",
        "the archive: differs in the order of its files",
    ]


def test_difference_of_the_archive(tmp_path: Path) -> None:
    (order,) = between(tmp_path, {"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert order == "the archive: differs in the order of its files"
    (date,) = differences(wheel(tmp_path / "1", {"a": "1"}), wheel(tmp_path / "2", {"a": "1"}, year=1990))
    assert "dates" in date.what
    other = NAME.replace("1.0", "1.1")
    (name,) = differences(wheel(tmp_path / "1", {"a": "1"}), wheel(tmp_path / "2", {"a": "1"}, name=other))
    assert other in name.what


def test_file_that_is_not_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "no.whl").write_text("no")
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        differences(wheel(tmp_path / "one", {"a": "1"}), tmp_path / "no.whl")
