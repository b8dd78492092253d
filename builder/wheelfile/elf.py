"""Read the dynamic part of an ELF file: needed libraries, defined and undefined symbols. Nothing is loaded.

pyelftools finds the sections. This module unpacks their tables itself. pyelftools creates one object for each symbol,
which is slow for the eighty thousand of libtorch_cpu (torch 2.11: 3 s with pyelftools, 0.16 s here), and it follows
damaged tables without limit. Containers of cells run this module under their own Python, 3.10 or newer.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from builder.errors import Code, UsageError
from builder.wheelfile import limits

if TYPE_CHECKING:
    from elftools.construct.lib.container import Container
    from elftools.elf.elffile import ELFFile

MAGIC = b"\x7fELF"
#: The section with GPU code.
GPU_SECTION = ".nv_fatbin"
#: The section with GPU code before the device link (`nvcc -rdc=true`), which stays in the library.
_UNLINKED_SECTION = "__nv_relfatbin"

_MACHINES = {
    "EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i686", "EM_ARM": "armv7l", "EM_PPC64": "ppc64le",
    "EM_S390": "s390x", "EM_RISCV": "riscv64", "EM_LOONGARCH": "loongarch64",
}  # fmt: skip
#: What a file is that is no library of Linux, by its first bytes.
_OTHERS = {
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS",
    b"!<arch>\n": "a static library",
    b"!<thin>\n": "a static library",
    b"MZ": "a library of Windows",
    b"\xcf\xfa\xed\xfe": "a library of macOS",
    b"\xca\xfe\xba\xbe": "a library of macOS",
    b"PK\3\4": "a zip archive",
}
#: What nobody meant to put into a wheel, and the cure.
MISHAPS = {
    "a pointer of Git LFS": "run `git lfs pull` in the source, and build the wheel again",
    "an empty file": "build the wheel again",
    "the text of a symbolic link": "copy the file that it names, because the source was unpacked without links",
}
_SCRIPT = re.compile(rb"GNU ld script|^\s*(?:INPUT|GROUP|OUTPUT_FORMAT)\s*\(", re.MULTILINE)
_LINK = re.compile(rb"[\w./+-]{1,255}\.so[.\d]*\n?")
_ELF_TYPES = {1: "an object file", 4: "a core dump"}
_EM_CUDA = 190
#: ELFOSABI_NONE and ELFOSABI_GNU: glibc loads no other library.
_LINUX_ABIS = (0, 3)
#: Bytes of a file that `what_else` needs.
HEAD = 512
_WEAK = 2
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN
_DT_NULL, _DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_TEXTREL, _DT_RUNPATH, _DT_FLAGS = 0, 1, 14, 15, 22, 29, 30
_DT_RELR = 36
_NAMES = (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)  # entries whose value is a place in the table of strings
_DF_TEXTREL = 4
_PF_X = 1


@dataclass(frozen=True)
class Elf:
    """What a shared library or a program states about itself."""

    #: DT_NEEDED entries, in file order.
    needed: tuple[str, ...]
    #: Undefined dynamic symbols that are not weak, sorted, without version suffix.
    undefined: tuple[str, ...]
    #: Dynamic symbols that other libraries can link to, sorted, without version suffix.
    defined: tuple[str, ...]
    #: Required symbol versions by library, sorted, e.g. {"libc.so.6": ("GLIBC_2.14",)}.
    versions: dict[str, tuple[str, ...]]
    #: Processor as in wheel tags (`x86_64`), or its ELF name when wheel tags have none.
    machine: str = ""
    #: DT_SONAME, or empty.
    soname: str = ""
    #: (library, version) by undefined symbol, for symbols that have a version, e.g. {"memcpy": ("libc.so.6",
    #: "GLIBC_2.14")}.
    bound: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: The file has a section of GPU code, which may be empty.
    fatbin: bool = False
    #: The GPU code is the result of a device link.
    device_link: bool = False
    #: The loader must write into the code (text relocations).
    textrel: bool = False
    #: The loader must make the stack executable.
    execstack: bool = False
    #: The loader must know relative relocations in the packed form (DT_RELR).
    relr: bool = False
    #: Bytes of debug information.
    debug: int = 0
    #: Folders in which the loader searches needed libraries: those of DT_RUNPATH, else of DT_RPATH.
    search: tuple[str, ...] = ()
    #: These folders are of DT_RPATH, which also serves the libraries that this library needs.
    rpath: bool = False


def what_else(head: bytes) -> str:
    """What a file with these first HEAD bytes is if it is no library or program of Linux, such as `an empty file`.

    Empty for an ELF file that may be one. Source of the ELF values: gABI chapter 4; glibc, elf/dl-load.c.
    """
    if head.startswith(MAGIC):
        order: Literal["big", "little"] = "big" if head[5:6] == b"\2" else "little"
        kind, machine = (int.from_bytes(head[at : at + 2], order) for at in (16, 18))
        if machine == _EM_CUDA:
            return "GPU code"
        if kind not in (2, 3):  # ET_EXEC, ET_DYN
            return _ELF_TYPES.get(kind, f"an ELF file of the type {kind}")
        return "" if head[7] in _LINUX_ABIS else f"a library of another system (ELF OS ABI {head[7]})"
    if found := next((name for begin, name in _OTHERS.items() if head.startswith(begin)), ""):
        return found
    if not head:
        return "an empty file"
    if _LINK.fullmatch(head):
        return "the text of a symbolic link"
    if _SCRIPT.search(head):
        return "a linker script"
    return "no ELF file" if b"\0" in head else "a text"


def read_elf(path: Path) -> Elf | None:
    """Read a library or program of a host processor; None for any other file (object file, GPU code, text).

    Raises UsageError for a damaged ELF file: an empty result would mean that the library needs nothing. Also raises it
    for a file beyond the limits of `builder.wheelfile.limits`.
    """
    with path.open("rb") as stream:
        if what_else(stream.read(HEAD)):
            return None
        with elf_faults(path):
            return _read(open_elf(stream))


def open_elf(stream: BinaryIO) -> ELFFile:
    """The sections of an ELF file. Raises ValueError, or anything else, for a damaged file; see `elf_faults`."""
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - loads slowly, and most runs read no ELF file

    elf = ELFFile(stream)
    if elf.num_sections() > limits.MAX_SECTIONS or elf.num_segments() > limits.MAX_SECTIONS:
        raise ValueError(f"more than {limits.MAX_SECTIONS} sections or segments")
    if elf.num_sections() and (names := elf["e_shstrndx"]) < elf.num_sections():
        header = elf.get_section(names).header
        if header["sh_size"] > limits.MAX_SECTION_NAMES:
            raise ValueError(f"more than {limits.MAX_SECTION_NAMES} bytes of section names")
    return elf


@contextmanager
def elf_faults(path: Path | str) -> Iterator[None]:
    """Turn what pyelftools raises for a damaged file into UsageError. It documents no list of its exceptions."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            "the ELF file is damaged: its dynamic section cannot be read", Code.WHEEL_DAMAGED, where=str(path)
        ) from error


def _read(elf: ELFFile) -> Elf:
    tables = Tables(elf)
    sections = tables.sections
    if ".dynamic" not in sections and any(segment["p_type"] == "PT_DYNAMIC" for segment in elf.iter_segments()):
        raise ValueError("dynamic, but without section headers")
    dynamic, values = tables.dynamic()
    versions, names = tables.version_needs()
    undefined, defined, bound = tables.symbols(names)
    machine = str(elf["e_machine"])
    runpath, rpath = _folders(dynamic, _DT_RUNPATH), _folders(dynamic, _DT_RPATH)
    # Without PT_GNU_STACK, glibc takes the default of the processor.
    stacks = [segment["p_flags"] & _PF_X for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK"]
    return Elf(
        machine=_MACHINES.get(machine, machine),
        soname=next((name for tag, name in dynamic if tag == _DT_SONAME), ""),
        needed=tuple(name for tag, name in dynamic if tag == _DT_NEEDED),
        undefined=tuple(sorted(undefined)),
        defined=tuple(sorted(defined)),
        versions=versions,
        bound=dict(sorted(bound.items())),
        fatbin=GPU_SECTION in sections,
        device_link=_UNLINKED_SECTION in sections,
        search=runpath or rpath,
        rpath=bool(rpath) and not runpath,
        textrel=_DT_TEXTREL in values or bool(values.get(_DT_FLAGS, 0) & _DF_TEXTREL),
        execstack=bool(stacks[0]) if stacks else machine in ("EM_X86_64", "EM_386"),
        relr=_DT_RELR in values,
        debug=sum(header["sh_size"] for name, header in sections.items() if name.startswith((".debug", ".zdebug"))),
    )


def _folders(dynamic: list[tuple[int, str]], wanted: int) -> tuple[str, ...]:
    return tuple(folder for tag, text in dynamic if tag == wanted and text for folder in text.split(":"))


class Tables:
    """The tables of an ELF file (gABI chapters 4 and 5; symbol versions: LSB Core 10.7)."""

    def __init__(self, elf: ELFFile) -> None:
        self._elf = elf
        self.sections = {section.name: section.header for section in elf.iter_sections()}
        self.order = "<" if elf.little_endian else ">"
        self._wide = elf.elfclass == 64

    def bytes_of(self, name: str) -> bytes:
        """Contents of a section as they are in the file; empty without the section."""
        if name not in self.sections or self.sections[name]["sh_type"] == "SHT_NOBITS":
            return b""
        return self._bytes(self.sections[name])

    def strings_of(self, name: str) -> bytes:
        """The table of strings that a section uses."""
        return self._bytes(self._elf.get_section(self.sections[name]["sh_link"]).header)

    def dynamic(self) -> tuple[list[tuple[int, str]], dict[int, int]]:
        """The dynamic section: (tag, text) of entries that name libraries or folders, in file order; other values."""
        data = self.bytes_of(".dynamic")
        if not data:
            return [], {}
        layout, strings = struct.Struct(self.order + ("qQ" if self._wide else "iI")), self.strings_of(".dynamic")
        found: list[tuple[int, str]] = []
        others: dict[int, int] = {}
        for count, (tag, value) in enumerate(layout.iter_unpack(data)):
            if tag == _DT_NULL:
                return found, others
            if count > limits.MAX_DYNAMIC_ENTRIES:
                break
            if tag in _NAMES:
                found.append((tag, string_at(strings, value)))
            else:
                others[tag] = value
        raise ValueError("the dynamic section has no end")

    def version_needs(self) -> tuple[dict[str, tuple[str, ...]], dict[int, tuple[str, str]]]:
        """Required versions of each library, and (library, version) by the index that symbols use."""
        wanted: dict[str, set[str]] = {}
        by_index: dict[int, tuple[str, str]] = {}
        data = self.bytes_of(".gnu.version_r")
        strings = self.strings_of(".gnu.version_r") if data else b""
        need, version = struct.Struct(self.order + "HHIII"), struct.Struct(self.order + "IHHII")
        start, left = 0, limits.MAX_DYNAMIC_ENTRIES
        while data:
            _, count, file, first, following = need.unpack_from(data, start)
            library, place = string_at(strings, file), start + first
            for _ in range(count):
                left -= 1
                if left < 0:
                    raise ValueError(f"more than {limits.MAX_DYNAMIC_ENTRIES} required versions")
                _, _, index, name, step = version.unpack_from(data, place)
                wanted.setdefault(library, set()).add(string_at(strings, name))
                by_index[index & 0x7FFF] = (library, string_at(strings, name))
                place += step
            if not following:
                break
            start += following
        return {library: tuple(sorted(names)) for library, names in sorted(wanted.items())}, by_index

    def symbols(self, versions: Mapping[int, tuple[str, str]]) -> tuple[set[str], set[str], dict[str, tuple[str, str]]]:
        """Undefined and defined dynamic symbols, and the required version of each undefined one that has a version."""
        undefined: set[str] = set()
        defined: set[str] = set()
        bound: dict[str, tuple[str, str]] = {}
        table, wide, versym = self.bytes_of(".dynsym"), self._wide, self.bytes_of(".gnu.version")
        indices = struct.unpack(f"{self.order}{len(versym) // 2}H", versym)
        layout = struct.Struct(self.order + ("IBBHQQ" if wide else "IIIBBH"))
        if len(table) > limits.MAX_SYMBOLS * layout.size:
            raise ValueError(f"more than {limits.MAX_SYMBOLS} symbols")
        strings, total = self.strings_of(".dynsym") if table else b"", 0
        for number, fields in enumerate(layout.iter_unpack(table)):
            if wide:
                start, info, other, section, _, _ = fields
            else:
                start, _, _, info, other, section = fields
            if start == 0 or not info >> 4:  # no name, or local to the file
                continue
            name = string_at(strings, start)
            total += len(name)
            if total > limits.MAX_SYMBOL_NAMES:
                raise ValueError(f"more than {limits.MAX_SYMBOL_NAMES} bytes of names")
            if section:
                if other & 3 not in _HIDDEN:
                    defined.add(name)
            elif info >> 4 != _WEAK:
                undefined.add(name)
                if indices and (version := versions.get(indices[number] & 0x7FFF)):
                    bound[name] = version
        return undefined, defined, bound

    def _bytes(self, header: Container) -> bytes:
        stream, size = self._elf.stream, header["sh_size"]
        stream.seek(0, os.SEEK_END)
        if header["sh_offset"] + size > stream.tell():
            raise ValueError("a section ends after the end of the file")
        stream.seek(header["sh_offset"])
        data: bytes = stream.read(size)
        return data


def string_at(strings: bytes, start: int) -> str:
    """The string that begins at `start` and ends with a zero; raises ValueError for none."""
    end = strings.index(b"\0", start, start + limits.MAX_SYMBOL_NAME)
    return strings[start:end].decode()
