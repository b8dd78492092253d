"""Read the dynamic part of an ELF file: needed libraries, defined and undefined symbols. Nothing is loaded.

pyelftools finds the sections. This module unpacks the symbol table itself, because pyelftools creates one object for
each symbol, which is slow for the eighty thousand of libtorch_cpu (torch 2.11: 3 s with pyelftools, 0.16 s here).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from builder.errors import UsageError
from builder.wheelfile.fatbin import SECTION

MAGIC = b"\x7fELF"

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i686"}
_WEAK = 2
_LOCAL = 0
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


@dataclass(frozen=True)
class Elf:
    """One shared library or program.

    Attributes:
        machine: processor as in wheel tags (`x86_64`), or its ELF name when wheel tags have none.
        soname: DT_SONAME, or empty.
        needed: DT_NEEDED entries, in file order.
        undefined: undefined dynamic symbols that are not weak, sorted.
        defined: dynamic symbols that other libraries can link to, sorted.
        versions: required symbol versions by library, sorted.
        bound: (library, version) by undefined symbol, for symbols that have a version.
        fatbin: the file has a section of GPU code.

    """

    machine: str
    soname: str
    needed: tuple[str, ...]
    undefined: tuple[str, ...]
    defined: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]
    bound: dict[str, tuple[str, str]]
    fatbin: bool


def read_elf(path: Path) -> Elf | None:
    """Read a library or program of a host processor; None for any other file (object file, GPU code, text).

    Raises UsageError for a damaged ELF file: an empty result would mean that the library needs nothing.
    """
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            return None
        try:
            return _read(ELFFile(stream))
        except (ELFError, struct.error, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
            raise UsageError("the ELF file is damaged: its dynamic section cannot be read", where=str(path)) from error


def _read(elf: ELFFile) -> Elf | None:
    if elf["e_type"] not in ("ET_DYN", "ET_EXEC") or elf["e_machine"] == "EM_CUDA":
        return None
    soname, needed = "", []
    dynamic: Any = elf.get_section_by_name(".dynamic")
    if dynamic is None and any(segment["p_type"] == "PT_DYNAMIC" for segment in elf.iter_segments()):
        raise ELFError("dynamic, but without section headers")
    for tag in dynamic.iter_tags() if dynamic is not None else ():
        if tag.entry.d_tag == "DT_NEEDED":
            needed.append(tag.needed)
        elif tag.entry.d_tag == "DT_SONAME":
            soname = tag.soname
    versions, names = _version_needs(elf)
    undefined, defined, bound = _symbols(elf, names)
    return Elf(
        machine=_MACHINES.get(elf["e_machine"], elf["e_machine"]),
        soname=soname,
        needed=tuple(needed),
        undefined=tuple(sorted(undefined)),
        defined=tuple(sorted(defined)),
        versions=versions,
        bound=dict(sorted(bound.items())),
        fatbin=elf.get_section_by_name(SECTION) is not None,
    )


def _version_needs(elf: ELFFile) -> tuple[dict[str, tuple[str, ...]], dict[int, tuple[str, str]]]:
    """Required versions of each library, and (library, version) by the index that symbols use."""
    wanted: dict[str, set[str]] = {}
    by_index: dict[int, tuple[str, str]] = {}
    section: Any = elf.get_section_by_name(".gnu.version_r")
    for need, entries in section.iter_versions() if section is not None else ():
        for entry in entries:
            wanted.setdefault(need.name, set()).add(entry.name)
            by_index[entry["vna_other"] & 0x7FFF] = (need.name, entry.name)
    return {library: tuple(sorted(names)) for library, names in sorted(wanted.items())}, by_index


def _symbols(
    elf: ELFFile, versions: dict[int, tuple[str, str]]
) -> tuple[set[str], set[str], dict[str, tuple[str, str]]]:
    undefined: set[str] = set()
    defined: set[str] = set()
    bound: dict[str, tuple[str, str]] = {}
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        return undefined, defined, bound
    order = "<" if elf.little_endian else ">"
    wide = elf.elfclass == 64
    layout = struct.Struct(order + ("IBBHQQ" if wide else "IIIBBH"))
    strings = elf.get_section(table["sh_link"]).data()
    versym_section = elf.get_section_by_name(".gnu.version")
    versym = versym_section.data() if versym_section is not None else b""
    indices = struct.unpack(f"{order}{len(versym) // 2}H", versym) if versym else ()
    end = strings.index
    for position, fields in enumerate(layout.iter_unpack(table.data())):
        start, info, other, section = fields[:4] if wide else (fields[0], *fields[3:6])
        bind = info >> 4
        if start == 0 or bind == _LOCAL:
            continue
        name = strings[start : end(b"\0", start)].decode()
        if section:
            if other & 3 not in _HIDDEN:
                defined.add(name)
        elif bind != _WEAK:
            undefined.add(name)
            if indices and (version := versions.get(indices[position] & 0x7FFF)):
                bound[name] = version
    return undefined, defined, bound
