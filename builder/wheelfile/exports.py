"""What libraries of a wheel may share with libraries of other packages in one process. Nothing is loaded.

`builder.wheelfile.facts` has the names of all symbols. This module also reads how they are bound, which only a
comparison of two packages needs.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.hashing import sha256_of
from builder.wheelfile.archive import WheelContents
from builder.wheelfile.elf import Tables, elf_faults, open_elf
from builder.wheelfile.facts import Library

_GLOBAL, _UNIQUE = 1, 10  # STB_GLOBAL, STB_GNU_UNIQUE
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
                found |= _op_libraries(Tables(open_elf(stream)))
    return frozenset(found)


def _op_libraries(tables: Tables) -> frozenset[str]:
    symbols = tables.symbols(".symtab", local=True)
    return frozenset(filter(None, (op_library(name) for _, name, _, _, here, _ in symbols if here)))


def _exports(library: Library, file: Path) -> Exports:
    strong, unique = set(), {}
    with file.open("rb") as stream, elf_faults(library.path):
        tables = Tables(open_elf(stream))
        for _, name, bind, visible, here, size in tables.symbols(".dynsym", local=True):
            if bind == _GLOBAL and here and visible:
                strong.add(name)
            elif bind == _UNIQUE and here and visible:
                unique[name] = size
        registered = _op_libraries(tables)
    return Exports(library, sha256_of(file), frozenset(strong), unique, registered)


def op_library(symbol: str) -> str:
    """The op library that a symbol of a symbol table registers, or empty."""
    match = _REGISTERS.match(symbol) if "TORCH_LIBRARY_init_" in symbol else None
    return symbol[match.end() : match.start(2) + int(match[1])] if match else ""
