from __future__ import annotations

import struct
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.wheelfile.facts import read_library
from builder.wheelfile.fatbin import read_device_code
from tests.conftest import coded
from tests.fixtures.compiled import compiled, with_gpu_code
from tests.unit.proofs.make import fat_binary

ONE, PTX = fat_binary((2, 90, 0x11)), fat_binary((1, 90, 0x2011))
MANY = fat_binary((2, 120, 0x11), (2, 75, 0x11), (2, 100, 0x11), (2, 90, 0x100011), (2, 90, 0x11))
PADDED = fat_binary((2, 80, 0x11)) + b"\0" * 24 + fat_binary((2, 90, 0x11), (1, 90, 0x11)) + fat_binary((2, 80, 0x11))
SECTIONS: dict[str, tuple[bytes, tuple[str, ...], tuple[str, ...]]] = {
    "machine code": (ONE, ("sm_90",), ()),
    "PTX, compressed": (PTX, (), ("compute_90",)),
    "of one architecture only": (fat_binary((2, 90, 0x108011)), ("sm_90a",), ()),
    "of a family": (fat_binary((2, 103, 0x1208011)), ("sm_103f",), ()),
    "PTX of one architecture only": (fat_binary((1, 90, 0x108011)), (), ("compute_90a",)),
    "sorted by number": (MANY, ("sm_75", "sm_90", "sm_90a", "sm_100", "sm_120"), ()),
    "many sources, padding between": (PADDED, ("sm_80", "sm_90"), ("compute_90",)),
    "empty": (b"\0" * 16, (), ()),
    "much padding": (b"\0" * (3 * 2**20 + 8) + ONE, ("sm_90",), ()),
}


@pytest.mark.parametrize(("section", "sass", "ptx"), SECTIONS.values(), ids=SECTIONS)
def test_architectures_listed(tmp_path: Path, section: bytes, sass: tuple[str, ...], ptx: tuple[str, ...]) -> None:
    found = read_device_code(with_gpu_code(tmp_path, section)).sizes
    assert tuple(code for code in found if code.startswith("sm_")) == sass
    assert tuple(code for code in found if code.startswith("compute_")) == ptx


#: Headers of `nvcc --concat` 13.5: PTX for 103a, 120 and 80; machine code for 100f, 103a and 120, with options.
PTX_HEADER = (
    "0001010180010000180100000000000012010000400000000100000000000000000000000000000011800000000000000000000000000000"
    "f803000000000000030000004001000001000101000000005801000000000000000000004800000005000900670000004000000004000000"
    "1100100000000000000000000000000000000000000000006b2e6375000000005000000016000000202d2d67656e65726174652d6c696e65"
    "2d696e666f200000010001015801000058010000000000000000000048000000050009007800000040000000040000001100000000000000"
    "000000000000000000000000000000006b2e6375000000005000000016000000202d2d67656e65726174652d6c696e652d696e666f200000"
    "01000101b0020000480100000000000000000000480000000500090050000000400000000400000011000000000000000000000000000000"
    "00000000000000006b2e6375000000005000000016000000202d2d67656e65726174652d6c696e652d696e666f200000"
)
SASS_HEADER = (
    "00010101c0010000b007000000000000b0070000400000000100000000000000000000000000000011800000000000000000000000000000"
    "b04f00000000000003000000800100000200010100000000901a000000000000000000004800000008000100640000004000000004000000"
    "1100200100000000000000000000000000000000000000006b2e63750000000050000000280000000002090000020c000002020100030d01"
    "010307010102030000040b08000900000000000000030e40040000000000000002000101901a0000901a0000000000000000000048000000"
    "080001006700000040000000040000001100100100000000000000000000000000000000000000006b2e6375000000005000000024000000"
    "0002090100020c000002020100030d010102030000040b08000000000000000000030e40040000000200010120350000901a000000000000"
    "0000000048000000080001007800000040000000040000001100000100000000000000000000000000000000000000006b2e637500000000"
    "50000000280000000002090000020c000002020100030d01010307010102030000040b08005000000000000000030e400400000000000000"
)


def concatenated(header: str) -> bytes:
    """A container with one entry that has this header."""
    entry = bytes.fromhex(header)
    entry += bytes(struct.unpack_from("<Q", entry, 8)[0])
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def test_concatenated_entries_are_read_one_by_one(tmp_path: Path) -> None:
    found = read_device_code(with_gpu_code(tmp_path, concatenated(PTX_HEADER) + concatenated(SASS_HEADER)))
    assert list(found.sizes) == ["compute_80", "sm_100f", "compute_103a", "sm_103a", "compute_120", "sm_120"]
    assert found.ptx == {"compute_80": "9.5", "compute_103a": "9.5", "compute_120": "9.5"}
    assert 1960 <= sum(size for code, size in found.sizes.items() if code.startswith("sm_")) <= 1968


@pytest.mark.parametrize("at", [64, 68, 72 + 76])
def test_concatenated_entries_of_another_layout_are_an_error(tmp_path: Path, at: int) -> None:
    """Number and bytes of the headers, length of the options of one."""
    header = bytearray.fromhex(SASS_HEADER)
    header[at] ^= 0x11
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_device_code(with_gpu_code(tmp_path, concatenated(header.hex())))


def test_the_bytes_of_all_sources_are_added(tmp_path: Path) -> None:
    one = fat_binary((2, 90, 0x11), (2, 80, 0x11))
    single = read_device_code(with_gpu_code(tmp_path, one)).sizes
    assert read_device_code(with_gpu_code(tmp_path, one * 3)).sizes == {code: 3 * size for code, size in single.items()}
    assert min(single.values()) > 0
    assert read_device_code(compiled(tmp_path, "int f() { return 1; }")).sizes == {}


def test_other_kinds_are_listed_too(tmp_path: Path) -> None:
    section = fat_binary((8, 90, 0x11), (77, 120, 0x200011), (2, 90, 0x11))
    library = read_library("ops/_C.so", with_gpu_code(tmp_path, section))
    assert library is not None
    assert list(library.gpu_code) == ["sm_90", "lto_90", "kind77_120f"]
    assert library.unknown_code == ["kind 77 for 120f"]


UNKNOWN = {
    "different layout": b"\x01" * 64,
    "cut short": ONE[:-8],
    "a later version": ONE.replace(b"\x01\x00\x10\x00", b"\x02\x00\x10\x00", 1),
    "an entry too long": ONE.replace(b"\x40\0\0\0\x08\0", b"\x40\0\0\0\xff\0", 1),
    "a header too short": ONE.replace(b"\x40\0\0\0\x08\0", b"\x08\0\0\0\x08\0", 1),
    "a container of no bytes": b"\x50\xed\x55\xba\x01\x00" + bytes(58),
    "too many containers": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 200_001,
}


@pytest.mark.parametrize("section", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_layout_is_an_error(tmp_path: Path, section: bytes) -> None:
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_device_code(with_gpu_code(tmp_path, section))
