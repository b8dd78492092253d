"""What libraries of a wheel may share with libraries of other packages in one process. Nothing is loaded.

`builder.wheelfile.facts` has the names of all symbols. This module also reads how they are bound, which only a
comparison of two packages needs.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from builder.hashing import sha256_of
from builder.wheelfile import limits
from builder.wheelfile.archive import WheelContents
from builder.wheelfile.elf import elf_faults, open_elf, string_at
from builder.wheelfile.facts import Library

_GLOBAL, _UNIQUE = 1, 10  # STB_GLOBAL, STB_GNU_UNIQUE
_UNDEFINED = 0
_EXPORTED = (0, 3)  # STV_DEFAULT, STV_PROTECTED
#: The function that TORCH_LIBRARY and STABLE_TORCH_LIBRARY define: local, in the symbol table that `strip` removes. It
#: may be in C++ namespaces: `_ZL`, `_ZN1xL`, `_ZN12_GLOBAL__N_1L`.
_REGISTERS = re.compile(r"_Z(?:N(?:\d{1,4}[A-Za-z_]\w{0,500}?)?)?L(\d{1,4})((?:STABLE_)?TORCH_LIBRARY_init_)")


@dataclass(frozen=True)
class Exports:
    """One library, and what it may share."""

    #: The library.
    library: Library
    #: Hex digest of the file.
    sha256: str
    #: Exported symbols that are neither weak nor unique.
    strong: frozenset[str]
    #: Size in bytes of each symbol with the binding STB_GNU_UNIQUE: a process has one of each name.
    unique: dict[str, int]
    #: The names that TORCH_LIBRARY registers; empty if the symbol table was stripped.
    op_libraries: frozenset[str]

    @property
    def name(self) -> str:
        """The name under which the dynamic loader knows the library when others need it."""
        return self.library.soname or self.library.basename


def read_exports(wheel: WheelContents, libraries: Sequence[Library]) -> list[Exports]:
    """Read these libraries of a wheel once more. Raises UsageError for a damaged file."""
    with tempfile.TemporaryDirectory(prefix="buildfarm-exports-") as folder:
        copy = Path(folder, "library.so")
        return [_exports(library, wheel.unpack(library.path, copy)) for library in libraries]


def read_op_libraries(wheel: WheelContents, libraries: Sequence[Library]) -> frozenset[str]:
    """Only the op libraries that these libraries register; see `Exports`."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="buildfarm-exports-") as folder:
        for library in libraries:
            with wheel.unpack(library.path, Path(folder, "library.so")).open("rb") as stream, elf_faults(library.path):
                found |= _op_libraries(open_elf(stream))
    return frozenset(found)


def _op_libraries(elf: ELFFile) -> frozenset[str]:
    return frozenset(filter(None, (op_library(name) for name, _, _, _ in _symbols(elf, ".symtab"))))


def _exports(library: Library, file: Path) -> Exports:
    strong, unique = set(), {}
    with file.open("rb") as stream, elf_faults(library.path):
        elf = open_elf(stream)
        for name, bind, size, exported in _symbols(elf, ".dynsym"):
            if bind == _GLOBAL and exported:
                strong.add(name)
            elif bind == _UNIQUE and exported:
                unique[name] = size
        registered = _op_libraries(elf)
    return Exports(library, sha256_of(file), frozenset(strong), unique, registered)


def op_library(symbol: str) -> str:
    """The op library that a symbol of a symbol table registers, or empty."""
    match = _REGISTERS.match(symbol) if "TORCH_LIBRARY_init_" in symbol else None
    return symbol[match.end() : match.start(2) + int(match[1])] if match else ""


def _symbols(elf: ELFFile, table: str) -> Iterator[tuple[str, int, int, bool]]:
    """Name, binding, size and whether other libraries see it, for each defined symbol of a table."""
    section = elf.get_section_by_name(table)
    if section is None or section["sh_type"] == "SHT_NOBITS":
        return
    layout = struct.Struct(("<" if elf.little_endian else ">") + ("IBBHQQ" if elf.elfclass == 64 else "IIIBBH"))
    data, strings = _data(elf, section), _data(elf, elf.get_section(section["sh_link"]))
    if len(data) > limits.MAX_SYMBOLS * layout.size:
        raise ELFError(f"more than {limits.MAX_SYMBOLS} symbols")
    total = 0
    for fields in layout.iter_unpack(data):
        if elf.elfclass == 64:
            start, info, other, where, _, size = fields
        else:
            start, _, size, info, other, where = fields
        if not start or where == _UNDEFINED:
            continue
        name = string_at(strings, start)
        total += len(name)
        if total > limits.MAX_SYMBOL_NAMES:
            raise ELFError(f"more than {limits.MAX_SYMBOL_NAMES} bytes of names")
        yield name, info >> 4, size, other & 3 in _EXPORTED


def _data(elf: ELFFile, section: Section) -> bytes:
    """The bytes of a section; raises ELFError for one that ends after the end of the file."""
    start, size = section["sh_offset"], section["sh_size"]
    elf.stream.seek(0, 2)
    if start + size > elf.stream.tell():
        raise ELFError("a section ends after the end of the file")
    elf.stream.seek(start)
    data: bytes = elf.stream.read(size)
    return data
