"""Which GPU architectures a library holds code for, read from the headers of its fat binaries.

A library keeps GPU code in the section `.nv_fatbin`: containers, one for each compiled source, and in each
one entry for each architecture, whose header names it. NVIDIA documents no layout, so this one was checked
against `cuobjdump --list-elf --list-ptx` 13.5 on the libraries of torch 2.14 and 2.15, cuDNN and
cuRAND: every count is equal. cuobjdump itself is not used because it stops at the first `sm_90` that CUDA
12.1 made ("Invalid ELF", torch 2.2.2 and torchvision 0.17.2), and lists `sm_103f` as `sm_103`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from elftools.elf.elffile import ELFFile

from builder.errors import UsageError

SECTION = ".nv_fatbin"

_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
_MAGIC, _VERSION = 0xBA55ED50, 1
_ENTRY = struct.Struct("<HHIQ12xI8xQ")  # kind, version, bytes of this header, of the code, architecture, flags
_PTX, _SASS = 1, 2
_SUFFIXES = {0x100000: "a", 0x200000: "f"}


def list_device_code(library: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Machine code and PTX of one library, e.g. (("sm_80", "sm_90a"), ("compute_90",)), sorted by number.

    Raises UsageError when the containers are not laid out as expected: then nothing is known of them.
    """
    found: set[tuple[int, int, str]] = set()
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(SECTION)
        if section is not None:
            _containers(stream, section["sh_offset"], section["sh_offset"] + section["sh_size"], found)
    sass = tuple(f"sm_{number}{suffix}" for kind, number, suffix in sorted(found) if kind == _SASS)
    ptx = tuple(f"compute_{number}{suffix}" for kind, number, suffix in sorted(found) if kind == _PTX)
    return sass, ptx


def _containers(stream: BinaryIO, start: int, end: int, found: set[tuple[int, int, str]]) -> None:
    while start + _CONTAINER.size <= end:
        magic, version, header, size = _CONTAINER.unpack(_read(stream, start, _CONTAINER.size))
        if magic == 0:  # the linker's padding between the containers of two sources
            start += 8
            continue
        if magic != _MAGIC or version != _VERSION or start + header + size > end:
            raise _unknown()
        _entries(stream, start + header, start + header + size, found)
        start += header + size


def _entries(stream: BinaryIO, start: int, end: int, found: set[tuple[int, int, str]]) -> None:
    while start < end:
        kind, _, header, size, number, flags = _ENTRY.unpack(_read(stream, start, _ENTRY.size))
        if header < _ENTRY.size or start + header + size > end:
            raise _unknown()
        suffix = "".join(letter for bit, letter in _SUFFIXES.items() if flags & bit)
        found.add((kind, number, suffix))
        start += header + size


def _read(stream: BinaryIO, start: int, size: int) -> bytes:
    stream.seek(start)
    data = stream.read(size)
    if len(data) < size:
        raise _unknown()
    return data


def _unknown() -> UsageError:
    return UsageError(
        "its GPU code is not laid out as known here, so its architectures cannot be told",
        hints=("the file is damaged, or its toolkit is newer than this program: compare `cuobjdump --list-elf`",),
    )
