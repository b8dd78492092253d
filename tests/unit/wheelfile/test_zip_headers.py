"""The headers before the files of a wheel, against the list of files at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.facts import open_wheel
from tests.fixtures.zip_archives import ARCHIVES

NAME = "t0-1.0-py3-none-any.whl"


@pytest.mark.parametrize("case", ARCHIVES)
def test_what_uv_refuses_is_a_fault(tmp_path: Path, case: str) -> None:
    content, fault = ARCHIVES[case]
    (tmp_path / NAME).write_bytes(content)
    with open_wheel(tmp_path / NAME) as wheel:
        found = wheel_fault(wheel)
    assert (fault in found) if fault else not found
