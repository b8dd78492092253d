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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.elf import GPU_SECTION, elf_faults, open_elf

_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
_MAGIC, _VERSION = 0xBA55ED50, 1
# kind, version, bytes of this header, of the code, minor and major of the PTX version, architecture, flags
_ENTRY = struct.Struct("<HHIQ8xHHI8xQ")
_PTX, _SASS = 1, 2
_SUFFIXES = {0x100000: "a", 0x200000: "f"}


@dataclass(frozen=True)
class DeviceCode:
    """The GPU code of one library."""

    #: Bytes of machine code and PTX by architecture, e.g. {"sm_80": 4096, "compute_90": 512}, sorted by number.
    sizes: dict[str, int]
    #: Version of the PTX language (ISA) by architecture, e.g. {"compute_90": "8.7"}; the newest of each. nvcc writes
    #: the version of its own release, and a driver compiles no newer version than its own.
    ptx: dict[str, str]


def read_device_code(library: Path) -> DeviceCode:
    """Read which GPU code a library has.

    Raises UsageError for a damaged ELF file, and when the containers have an unknown layout or are more than
    MAX_GPU_CODES.
    """
    found: Counter[tuple[int, int, str]] = Counter()
    versions: dict[str, tuple[int, int]] = {}
    with library.open("rb") as stream, elf_faults(library):
        section = open_elf(stream).get_section_by_name(GPU_SECTION)
        if section is not None:
            for kind, number, suffix, size, version in _entries(stream, section["sh_offset"], section["sh_size"]):
                found[kind, number, suffix] += size
                if kind == _PTX:
                    name = f"compute_{number}{suffix}"
                    versions[name] = max(versions.get(name, (0, 0)), version)
    names = {_SASS: "sm", _PTX: "compute"}
    order = sorted((number, suffix, kind) for kind, number, suffix in found if kind in names)
    sizes = {f"{names[kind]}_{number}{suffix}": found[kind, number, suffix] for number, suffix, kind in order}
    return DeviceCode(sizes, {name: f"{major}.{minor}" for name, (major, minor) in sorted(versions.items()) if major})


def _entries(stream: BinaryIO, start: int, size: int) -> Iterator[tuple[int, int, str, int, tuple[int, int]]]:
    """Kind, architecture (number and suffix), bytes and PTX version of each entry of the containers in a section."""
    left, end = limits.MAX_GPU_CODES, start + size
    while start + _CONTAINER.size <= end:
        left -= 1
        magic, version, header, size = _CONTAINER.unpack(_read(stream, start, _CONTAINER.size))
        if magic == 0:  # padding by the linker between two containers
            start += _padding(stream, start)
            continue
        stop = start + header + size
        if left < 0 or magic != _MAGIC or version != _VERSION or header < _CONTAINER.size or stop > end:
            raise _unknown()
        start += header
        while start < stop:
            left -= 1
            kind, _, header, size, minor, major, number, flags = _ENTRY.unpack(_read(stream, start, _ENTRY.size))
            if left < 0 or header < _ENTRY.size or start + header + size > stop:
                raise _unknown()
            suffix = "".join(letter for bit, letter in _SUFFIXES.items() if flags & bit)
            yield kind, number, suffix, size, (major, minor)
            start += header + size


def _padding(stream: BinaryIO, start: int) -> int:
    """Bytes of zeros from `start`, a multiple of eight; at least eight."""
    stream.seek(start)
    block = stream.read(1 << 20)
    return max(8, (len(block) - len(block.lstrip(b"\0"))) // 8 * 8)


def _read(stream: BinaryIO, start: int, size: int) -> bytes:
    stream.seek(start)
    data = stream.read(size)
    if len(data) < size:
        raise _unknown()
    return data


def _unknown() -> UsageError:
    return UsageError(
        "the GPU code has an unknown layout, so its architectures cannot be read",
        Code.LIBRARY_DAMAGED,
        hints=("the file is damaged, or its CUDA toolkit is newer than buildfarm: check with `cuobjdump --list-elf`",),
    )
