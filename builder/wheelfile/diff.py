"""Differences between two wheels: file by file, and in libraries section by section. Nothing is executed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import UsageError
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.elf import MAGIC, elf_faults, open_elf

#: Meaning of the sections whose difference hints at the cause. (Source: ELF gABI; the nv names from libraries that nvcc
#: 11.8 to 13.0 wrote.)
_MEANINGS = {
    ".nv_fatbin": "GPU code",
    "__nv_relfatbin": "relocatable GPU code",
    ".nvFatBinSegment": "location of GPU code",
    "__nv_module_id": "nvcc's name for one translation unit",
    ".note.gnu.build-id": "computed from the other sections",
    ".gnu_debuglink": "name of a file with debug information",
    ".comment": "names of the compilers",
    ".symtab": "local symbols",
    ".strtab": "names of local symbols",
    ".rodata": "constants, such as file names in assertions",
}

#: Printable text, as strings(1) finds it.
_TEXT = re.compile(rb"[\x20-\x7e]{4,}")


@dataclass(frozen=True)
class Difference:
    """One difference between two wheels.

    Attributes:
        member: path inside the wheel; empty for the archive itself.
        section: section of a library, or empty for the entire file.
        what: the difference, as text.

    """

    member: str
    section: str
    what: str

    def __str__(self) -> str:
        """One line: `pkg/_C.so: .strtab: …`."""
        return ": ".join(filter(None, (self.member, self.section, self.what)))


def differences(first: Path, second: Path) -> list[Difference]:
    """Every difference, sorted by path and section; empty when the wheels are equal bit for bit.

    Raises DamagedWheelError for a file that cannot be read.
    """
    if first.read_bytes() == second.read_bytes():
        return [] if first.name == second.name else [_archive(f"named {first.name} and {second.name}")]
    found = [_archive(f"named {first.name} and {second.name}")] if first.name != second.name else []
    one, two = _members(first), _members(second)
    for path in sorted(one.keys() | two.keys()):
        if path not in two or path not in one:
            found.append(Difference(path, "", f"only in the {'first' if path in one else 'second'}"))
        elif one[path] != two[path]:
            found += _inside(path, one[path], two[path])
    if not found or list(one) != list(two):
        how = "the order of its files" if list(one) != list(two) else "dates, modes or compression of its files"
        found.append(_archive(f"differs in {how}"))
    return found


def _archive(what: str) -> Difference:
    return Difference("", "", f"the archive: {what}")


def _members(wheel: Path) -> dict[str, bytes]:
    """Contents by path, in the order of the archive."""
    with WheelFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.names}


def _inside(path: str, one: bytes, two: bytes) -> Iterator[Difference]:
    if one.startswith(MAGIC) and two.startswith(MAGIC):
        try:
            yield from _in_library(path, one, two)
            return
        except UsageError:  # a damaged library is compared as a plain file
            pass
    yield Difference(path, "", _how(one, two))


def _in_library(path: str, one: bytes, two: bytes) -> Iterator[Difference]:
    left, right = _sections(path, one), _sections(path, two)
    same = True
    for name in [*left, *(name for name in right if name not in left)]:
        if name not in right or name not in left:
            yield Difference(path, name, f"only in the {'first' if name in left else 'second'}{_meaning(name)}")
        elif left[name] != right[name]:
            yield Difference(path, name, f"{_how(left[name], right[name])}{_meaning(name)}")
        else:
            continue
        same = False
    if same:
        yield Difference(path, "", "every section is equal; headers, padding or order differ")


def _sections(path: str, data: bytes) -> Mapping[str, bytes]:
    """Contents by section name, in file order; equal names are numbered: `.text`, `.text (2)`."""
    found: dict[str, bytes] = {}
    with elf_faults(path):
        for section in open_elf(io.BytesIO(data)).iter_sections():
            name, count = section.name, 2
            while name in found:
                name, count = f"{section.name} ({count})", count + 1
            found[name] = section.data()
    return found


def _meaning(section: str) -> str:
    known = _MEANINGS.get(section.partition(" ")[0])
    return f" ({known})" if known else ""


def _how(one: bytes, two: bytes) -> str:
    """Number of bytes that differ, and the first text that differs, if any."""
    if len(one) != len(two):
        amount = f"{len(one)} and {len(two)} bytes"
    else:
        amount = f"{_differing(one, two)} of {len(one)} bytes"
    texts = zip(_TEXT.findall(one), _TEXT.findall(two), strict=False)
    pair = next(((a, b) for a, b in texts if a != b), None)
    if pair is None:
        return amount
    left, right = (text.decode("ascii") for text in pair)
    return f"{amount}, first {_window(left, right)!r} and {_window(right, left)!r}"


def _differing(one: bytes, two: bytes, step: int = 4096) -> int:
    """Number of bytes that differ in two values of equal length; equal blocks of `step` bytes are skipped."""
    pairs = ((one[at : at + step], two[at : at + step]) for at in range(0, len(one), step))
    return sum(sum(a != b for a, b in zip(left, right, strict=True)) for left, right in pairs if left != right)


def _window(text: str, other: str, width: int = 60) -> str:
    """The part of a text around the first character that differs from `other`."""
    start = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, start - width // 2)
    return f"{'…' if start else ''}{text[start : start + width]}{'…' if len(text) > start + width else ''}"
