"""Read the GPU architectures of a library from the headers of its fat binaries.

The section `.nv_fatbin` holds one container for each compiled source. A container holds one entry for each
architecture, which the header of the entry names. NVIDIA does not document the layout. The counts of this reader equal
those of `cuobjdump --list-elf --list-ptx` 13.5 for the libraries of torch 2.14 and 2.15, cuDNN and cuRAND. cuobjdump is
not used: it stops at the first `sm_90` entry that CUDA 12.1 wrote ("Invalid ELF", torch 2.2.2 and torchvision 0.17.2),
and lists `sm_103f` as `sm_103`.
"""

from __future__ import annotations

import struct
from collections import Counter
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


def measure_device_code(library: Path) -> dict[str, int]:
    """Bytes of machine code and PTX by architecture, e.g. {"sm_80": 4096, "compute_90": 512}, sorted by number.

    Raises UsageError when the containers have an unknown layout.
    """
    found: Counter[tuple[int, int, str]] = Counter()
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(SECTION)
        if section is not None:
            _containers(stream, section["sh_offset"], section["sh_offset"] + section["sh_size"], found)
    names = {_SASS: "sm", _PTX: "compute"}
    order = sorted((number, suffix, kind) for kind, number, suffix in found if kind in names)
    return {f"{names[kind]}_{number}{suffix}": found[kind, number, suffix] for number, suffix, kind in order}


def _containers(stream: BinaryIO, start: int, end: int, found: Counter[tuple[int, int, str]]) -> None:
    while start + _CONTAINER.size <= end:
        magic, version, header, size = _CONTAINER.unpack(_read(stream, start, _CONTAINER.size))
        if magic == 0:  # padding by the linker between two containers
            start += 8
            continue
        if magic != _MAGIC or version != _VERSION or start + header + size > end:
            raise _unknown()
        _entries(stream, start + header, start + header + size, found)
        start += header + size


def _entries(stream: BinaryIO, start: int, end: int, found: Counter[tuple[int, int, str]]) -> None:
    while start < end:
        kind, _, header, size, number, flags = _ENTRY.unpack(_read(stream, start, _ENTRY.size))
        if header < _ENTRY.size or start + header + size > end:
            raise _unknown()
        suffix = "".join(letter for bit, letter in _SUFFIXES.items() if flags & bit)
        found[kind, number, suffix] += size
        start += header + size


def _read(stream: BinaryIO, start: int, size: int) -> bytes:
    stream.seek(start)
    data = stream.read(size)
    if len(data) < size:
        raise _unknown()
    return data


def _unknown() -> UsageError:
    return UsageError(
        "the GPU code has an unknown layout, so its architectures cannot be read",
        hints=("the file is damaged, or its CUDA toolkit is newer than buildfarm: check with `cuobjdump --list-elf`",),
    )
