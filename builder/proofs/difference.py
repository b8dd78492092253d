"""Where two wheels differ: file by file, and in a library section by section. Nothing in them is run."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from builder.errors import UsageError
from builder.wheels.elf import MAGIC

#: What a section is for, where a difference in it says something about the cause. (ELF gABI; the nv names as seen in
#: libraries that nvcc 11.8 to 13.0 made.)
_MEANINGS = {
    ".nv_fatbin": "GPU code",
    "__nv_relfatbin": "relocatable GPU code",
    ".nvFatBinSegment": "where GPU code lies",
    "__nv_module_id": "nvcc's name for one translation unit",
    ".note.gnu.build-id": "follows from the other sections",
    ".gnu_debuglink": "names a file of debug information",
    ".comment": "which compilers wrote it",
    ".symtab": "local symbols",
    ".strtab": "names of local symbols",
    ".rodata": "constants, file names of assertions among them",
}

#: Text worth showing: a run of printable characters, as strings(1) has it.
_TEXT = re.compile(rb"[\x20-\x7e]{4,}")


@dataclass(frozen=True)
class Difference:
    """One place where two wheels are not the same.

    Attributes:
        member: path inside the wheel; empty for the archive itself.
        section: section of a library, or empty for the file as a whole.
        what: how they differ, in words.

    """

    member: str
    section: str
    what: str

    def __str__(self) -> str:
        """As one line: `pkg/_C.so: .strtab: …`."""
        return ": ".join(filter(None, (self.member, self.section, self.what)))


def differences(first: Path, second: Path) -> list[Difference]:
    """Every place where two wheels differ, by path and section; empty when they are equal bit for bit.

    Raises UsageError for a file that is no zip archive.
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
    """Path to content, in the archive's order."""
    try:
        with zipfile.ZipFile(wheel) as zipped:
            return {info.filename: zipped.read(info) for info in zipped.infolist() if not info.is_dir()}
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"this wheel cannot be read: {error}", where=str(wheel)) from error


def _inside(path: str, one: bytes, two: bytes) -> Iterator[Difference]:
    if one.startswith(MAGIC) and two.startswith(MAGIC):
        try:
            yield from _in_library(path, one, two)
            return
        except ELFError:  # damaged: all that can be said is that it differs
            pass
    yield Difference(path, "", _how(one, two))


def _in_library(path: str, one: bytes, two: bytes) -> Iterator[Difference]:
    left, right = _sections(one), _sections(two)
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


def _sections(data: bytes) -> Mapping[str, bytes]:
    """Section name to bytes, in file order; several of one name count on: `.text`, `.text (2)`."""
    found: dict[str, bytes] = {}
    for section in ELFFile(io.BytesIO(data)).iter_sections():
        name, count = section.name, 2
        while name in found:
            name, count = f"{section.name} ({count})", count + 1
        found[name] = section.data()
    return found


def _meaning(section: str) -> str:
    known = _MEANINGS.get(section.partition(" ")[0])
    return f" ({known})" if known else ""


def _how(one: bytes, two: bytes) -> str:
    """How many bytes differ, and the first text that is not in both, if there is any."""
    if len(one) != len(two):
        amount = f"{len(one)} and {len(two)} bytes"
    else:
        amount = f"{_differing(one, two)} of {len(one)} bytes"
    here, there = _TEXT.findall(one), _TEXT.findall(two)
    pair = next(((a, b) for a, b in zip(here, there, strict=False) if a != b), None)
    if pair is None:
        return amount
    left, right = (text.decode("ascii") for text in pair)
    return f"{amount}, first {_window(left, right)!r} and {_window(right, left)!r}"


def _differing(one: bytes, two: bytes, step: int = 4096) -> int:
    """How many bytes differ in two of one length; equal stretches cost next to nothing."""
    pairs = ((one[at : at + step], two[at : at + step]) for at in range(0, len(one), step))
    return sum(sum(a != b for a, b in zip(left, right, strict=True)) for left, right in pairs if left != right)


def _window(text: str, other: str, width: int = 60) -> str:
    """The part of a text around the first character that another has not."""
    start = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, start - width // 2)
    return f"{'…' if start else ''}{text[start : start + width]}{'…' if len(text) > start + width else ''}"
