from __future__ import annotations

import struct
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.wheelfile.fatbin import read_device_code
from tests.conftest import coded
from tests.fixtures.compiled import compiled, with_gpu_code
from tests.unit.proofs.make import fat_binary


@pytest.mark.parametrize(
    ("section", "sass", "ptx"),
    [
        pytest.param(fat_binary((2, 90, 0x11)), ("sm_90",), (), id="machine code"),
        pytest.param(fat_binary((1, 90, 0x2011)), (), ("compute_90",), id="PTX, compressed"),
        pytest.param(fat_binary((2, 90, 0x108011)), ("sm_90a",), (), id="of one architecture only"),
        pytest.param(fat_binary((2, 103, 0x1208011)), ("sm_103f",), (), id="of a family"),
        pytest.param(fat_binary((1, 90, 0x108011)), (), ("compute_90a",), id="PTX of one architecture only"),
        pytest.param(
            fat_binary((2, 120, 0x11), (2, 75, 0x11), (2, 100, 0x11), (2, 90, 0x100011), (2, 90, 0x11)),
            ("sm_75", "sm_90", "sm_90a", "sm_100", "sm_120"),
            (),
            id="sorted by number",
        ),
        pytest.param(
            fat_binary((2, 80, 0x11))
            + b"\0" * 24
            + fat_binary((2, 90, 0x11), (1, 90, 0x11))
            + fat_binary((2, 80, 0x11)),
            ("sm_80", "sm_90"),
            ("compute_90",),
            id="many sources, padding between",
        ),
        pytest.param(fat_binary((8, 90, 0x11)), (), (), id="neither of both"),
        pytest.param(b"\0" * 16, (), (), id="empty"),
        pytest.param(b"\0" * (3 * 2**20 + 8) + fat_binary((2, 90, 0x11)), ("sm_90",), (), id="much padding"),
    ],
)
def test_architectures_listed(tmp_path: Path, section: bytes, sass: tuple[str, ...], ptx: tuple[str, ...]) -> None:
    found = read_device_code(with_gpu_code(tmp_path, section)).sizes
    assert tuple(code for code in found if code.startswith("sm_")) == sass
    assert tuple(code for code in found if code.startswith("compute_")) == ptx


def test_the_bytes_of_all_sources_are_added(tmp_path: Path) -> None:
    one = fat_binary((2, 90, 0x11), (2, 80, 0x11))
    single = read_device_code(with_gpu_code(tmp_path, one)).sizes
    assert read_device_code(with_gpu_code(tmp_path, one * 3)).sizes == {code: 3 * size for code, size in single.items()}
    assert min(single.values()) > 0


def test_library_without_gpu_code(tmp_path: Path) -> None:
    assert read_device_code(compiled(tmp_path, "int f() { return 1; }")).sizes == {}


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(b"\x01" * 64, id="different layout"),
        pytest.param(fat_binary((2, 90, 0x11))[:-8], id="cut short"),
        pytest.param(
            fat_binary((2, 90, 0x11)).replace(b"\x01\x00\x10\x00", b"\x02\x00\x10\x00", 1),
            id="a later version",
        ),
        pytest.param(
            fat_binary((2, 90, 0x11)).replace(b"\x40\0\0\0\x08\0", b"\x40\0\0\0\xff\0", 1),
            id="an entry too long",
        ),
        pytest.param(
            fat_binary((2, 90, 0x11)).replace(b"\x40\0\0\0\x08\0", b"\x08\0\0\0\x08\0", 1),
            id="a header too short",
        ),
        pytest.param(b"\x50\xed\x55\xba\x01\x00" + bytes(58), id="a container of no bytes"),
        pytest.param(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 200_001, id="too many containers"),
    ],
)
def test_unknown_layout_is_an_error(tmp_path: Path, section: bytes) -> None:
    with pytest.raises(UsageError, check=coded(Code.LIBRARY_DAMAGED)):
        read_device_code(with_gpu_code(tmp_path, section))
