"""RECORD against the files of a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from builder.wheelfile.archive import WheelFile, record_fault
from tests.unit.loopback import pure_wheel

INFO = "ops-1.0.dist-info"


def fault_of(path: Path) -> str:
    with WheelFile(path) as wheel:
        return record_fault(wheel)


def test_a_whole_wheel_has_no_fault(tmp_path: Path) -> None:
    assert fault_of(pure_wheel(tmp_path, "ops", "1.0")) == ""


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ops.py": "other"}, "ops.py differs from its hash in RECORD, so the wheel was changed after it was built"),
        ({"more.py": ""}, "RECORD does not list more.py, so the wheel was changed after it was built"),
        ({"ops.py": None}, "the wheel lacks ops.py, which RECORD lists"),
        ({f"{INFO}/RECORD": "ops.py,md5=x,0\n"}, "RECORD has no hash of ops.py"),
        ({f"{INFO}/RECORD.jws": "signature"}, ""),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: dict[str, str | None], fault: str) -> None:
    wheel = pure_wheel(tmp_path, "ops", "1.0")
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in (members | change).items():
            if content is not None:
                archive.writestr(name, content)
    assert fault_of(wheel) == fault
