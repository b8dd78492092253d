"""The reader of wheel files: listed names, contents, metadata, and errors."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from builder.wheelfile.archive import DamagedWheelError, WheelFile

INFO = "ops-1.0.dist-info"
FILES = {
    "ops/__init__.py": "x = 1\n",
    f"{INFO}/METADATA": "Name: ops\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Tag: cp312-cp312-linux_x86_64\nTag: cp311-cp311-linux_x86_64\n",
}


def wheel(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "ops-1.0-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(info, text)
    return path


def test_files_and_metadata(tmp_path: Path) -> None:
    with WheelFile(wheel(tmp_path, {"ops/": "", "ops/run.sh": "", **FILES})) as opened:
        assert opened.names == ("ops/run.sh", *FILES)
        assert opened.read("ops/__init__.py") == b"x = 1\n"
        assert opened.executable("ops/run.sh")
        assert not opened.executable("ops/__init__.py")
        assert opened.dist_info == INFO
        assert opened.metadata["Name"] == "ops"
        assert opened.tags == ("cp311-cp311-linux_x86_64", "cp312-cp312-linux_x86_64")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        pytest.param({"ops/x.py": ""}, "this wheel has 0", id="no dist-info"),
        pytest.param({**FILES, "two-1.0.dist-info/METADATA": ""}, "this wheel has 2", id="two dist-info folders"),
        pytest.param({f"{INFO}/WHEEL": ""}, "has no METADATA", id="no METADATA"),
    ],
)
def test_missing_metadata_is_an_error(tmp_path: Path, files: dict[str, str], says: str) -> None:
    path = wheel(tmp_path, files)
    with WheelFile(path) as opened, pytest.raises(DamagedWheelError, match=says) as caught:
        opened.read_dist_info("METADATA")
    assert caught.value.where == str(path)
