"""Read the GPU architectures of a library from the headers of its fat binaries.

The section `.nv_fatbin` holds one container for each compiled source. A container holds one entry for each
architecture, which the header of the entry names, or for several (`nvcc --concat`, CUDA 13.4 and newer). NVIDIA does
not document the layout. tests/benchmarks/reader_and_cuobjdump.py compares the counts of this reader with those of
`cuobjdump --list-elf --list-ptx` 13.5; docs/reference/gpu-code.md has the result. cuobjdump is not used: it stops at
the first `sm_90` entry that CUDA 12.1 wrote ("Invalid ELF", torch 2.2.2 and torchvision 0.17.2), and lists `sm_103f`
as `sm_103`.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.elf import GPU_SECTION, elf_faults, open_elf

_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
_MAGIC, _VERSION = 0xBA55ED50, 1
# kind, bytes of this header, of the code, place of the options, minor and major of the PTX version, architecture, place
# and length of the name, flags; the header is longer
_ENTRY, _ENTRY_BYTES = struct.Struct("<HxxIQ4xIHHIIIQ"), 64
#: Of the options: their place and length. Of concatenated entries: their number, bytes of their headers.
_PAIR = struct.Struct("<II")
_PTX, _SASS, _LTO, _CONCATENATED = 1, 2, 8, 256
_NAMES = {_PTX: "compute_{}", _SASS: "sm_{}", _LTO: "lto_{}"}
_SUFFIXES = {0x100000: "a", 0x200000: "f"}


def read_device_code(library: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Which GPU code a library has. Raises UsageError for a damaged file, an unknown layout, and too many codes.

    First, bytes of machine code, PTX and LTO-IR by architecture, e.g. {"sm_80": 4096, "compute_90": 512, "lto_90":
    900}, sorted by number; of code of another kind by the number of the kind, e.g. {"kind77_90": 300}. Then, the newest
    version of the PTX language (ISA) by architecture, e.g. {"compute_90": "8.7"}. nvcc writes the version of its own
    release, and a driver compiles no newer version than its own.
    """
    found: Counter[tuple[int, str, int]] = Counter()
    versions: dict[str, tuple[int, int]] = {}
    for one in gpu_entries(library):
        found[one.number, one.suffix, one.kind] += one.size
        if one.kind == _PTX:
            versions[one.name] = max(versions.get(one.name, (0, 0)), one.version)
    sizes = {
        FatbinEntry(kind, number, suffix).name: found[number, suffix, kind] for number, suffix, kind in sorted(found)
    }
    return sizes, {name: f"{major}.{minor}" for name, (major, minor) in sorted(versions.items()) if major}


class FatbinEntry(NamedTuple):
    """GPU code of one kind and architecture: its bytes, and the version of PTX."""

    kind: int
    number: int
    suffix: str
    size: int = 0
    version: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The architecture as `read_device_code` names it."""
        return _NAMES.get(self.kind, f"kind{self.kind}_{{}}").format(f"{self.number}{self.suffix}")


def gpu_entries(library: Path) -> Iterator[FatbinEntry]:
    """Each entry of the fat binaries of a library, in file order; raises what `read_device_code` raises."""
    with library.open("rb") as stream, elf_faults(library):
        section = open_elf(stream).get_section_by_name(GPU_SECTION)
        if section is not None:
            yield from _entries(stream, section["sh_offset"], section["sh_size"])


def _entries(stream: BinaryIO, start: int, size: int) -> Iterator[FatbinEntry]:
    """Each entry of the containers in a section; concatenated entries one by one."""
    left, end = limits.MAX_GPU_CODES, start + size
    while start + _CONTAINER.size <= end:
        left -= 1
        magic, version, header, size = _CONTAINER.unpack(_read(stream, start, _CONTAINER.size))
        if magic == 0:  # padding by the linker between two containers, a multiple of eight bytes
            stream.seek(start)
            block = stream.read(1 << 20)
            start += max(8, (len(block) - len(block.lstrip(b"\0"))) // 8 * 8)
            continue
        stop = start + header + size
        if left < 0 or magic != _MAGIC or version != _VERSION or header < _CONTAINER.size or stop > end:
            raise _unknown()
        start += header
        while start < stop:
            left -= 1
            entry, header, size, _ = _entry(_read(stream, start, _ENTRY.size))
            if left < 0 or header < _ENTRY_BYTES or start + header + size > stop:
                raise _unknown()
            if entry.kind == _CONCATENATED:
                parts = _parts(_read(stream, start + _ENTRY_BYTES, header - _ENTRY_BYTES))
                left -= len(parts)
                whole = sum(part.size for part in parts) or 1
                yield from (part._replace(size=part.size * size // whole) for part in parts)
            else:
                yield entry
            start += header + size


def _entry(data: bytes) -> tuple[FatbinEntry, int, int, int]:
    """An entry, the bytes of its header and of its code, and the bytes of the header by what it contains."""
    kind, header, size, options, minor, major, number, name, length, flags = _ENTRY.unpack_from(data)
    suffix = "".join(letter for bit, letter in _SUFFIXES.items() if flags & bit)
    end = _after_text(name, length) if name else _ENTRY_BYTES
    if options and options + _PAIR.size <= len(data):
        end = _after_text(*_PAIR.unpack_from(data, options))
    return FatbinEntry(kind, number, suffix, size, (major, minor)), header, size, end


def _after_text(start: int, length: int) -> int:
    """Where a text with its zero ends, at a multiple of eight."""
    return (start + length) // 8 * 8 + 8


def _parts(data: bytes) -> list[FatbinEntry]:
    """The concatenated entries whose headers these are: number and bytes of all, then one behind the other."""
    if len(data) < _PAIR.size:
        raise _unknown()
    (count, size), at = _PAIR.unpack_from(data), _PAIR.size
    parts: list[FatbinEntry] = []
    while at + _ENTRY.size <= len(data) and len(parts) < count:
        entry, _, _, end = _entry(data[at:])
        parts.append(entry)
        at += end
    if len(parts) != count or at != size or any(part.kind == _CONCATENATED for part in parts):
        raise _unknown()
    return parts


def _read(stream: BinaryIO, start: int, size: int) -> bytes:
    stream.seek(start)
    data = stream.read(size)
    if len(data) < size:
        raise _unknown()
    return data


def _unknown() -> UsageError:
    return UsageError(
        "the GPU code has an unknown layout, so its architectures cannot be read",
        Code.WHEEL_DAMAGED,
        hints=("the file is damaged, or its CUDA toolkit is newer than buildfarm: check with `cuobjdump --list-elf`",),
    )
