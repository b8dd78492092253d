"""The forms in which compilers, linkers, CMake and Python name an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from builder.untrusted.plain_text import without_escapes

#: Characters of a line that are read. Command lines are longer, messages are not.
_LONGEST_LINE = 4000
_WORDS = r"(?:fatal |catastrophic |internal compiler )?"

#: `a.cpp:3:1: error: …` (gcc, clang), `a.cu(12): error: …` and `a.cu(12): error #20: …` (nvcc). Group 4 is the message.
_PLACED = re.compile(
    r"\s*(?P<file>[^\s:(|'\"<>][^:(|'\"<>]*)(?::(?P<line>\d+)(?::\d+)?|\((?P<number>\d+)\)) ?: "
    rf"{_WORDS}error(?: #[\w-]+)?: \S"
)
#: An error, a warning or a note at a place: the text of the message before it ends here.
NEXT_MESSAGE = re.compile(
    rf"[^:(|]+(?::\d+(?::\d+)?|\(\d+\)) ?: {_WORDS}(?:error|warning|note|remark)(?: #[\w-]+)?:"
    r"|.* In (?:member )?function "
)
#: A line of the source, or the mark below it.
_SHOWN = re.compile(r"\s*\d+ \| |\s+\| ")
#: A compiler, linker or build tool that names itself: `nvcc fatal   : …`, `ptxas x.ptx, line 2; error   : …`.
_TOOL = re.compile(
    r"(?:\S*/)?(?:nvcc|ptxas|nvlink|fatbinary|cicc|cudafe\+\+|cc1(?:plus|obj)?|collect2|ninja|meson|sccache|lto1"
    r"|(?:[\w.-]*-)?(?:g\+\+|gcc|c\+\+|cc|clang(?:\+\+)?)(?:-[\d.]+)?|ld(?:\.\w+)?)"
    rf"(?:\s[^:]*?)?:?\s*{_WORDS}(?:error|fatal)\s*:"
)
_LINKER = re.compile(
    r"(?!.*\bwarning: ).*(?:undefined reference to|cannot find -l|: multiple definition of|: relocation R_\w+ against"
    r"|final link failed|file format not recognized|file not recognized)"
)
_OTHER = re.compile(
    r"\s*CMake Error(?: at |: | in )|fatal: |make(?:\[\d+\])?: \*\*\* No rule to make target"
    r"|\S*python[\d.]*: No module named \S"
    r"|(?:/\S*/)?(?:ba|da)?sh: (?:line )?\d+: .*(?:not found|Permission denied|No such file or directory)$"
)
#: A program that names an error at the start of a line, and the last line of Python's traceback.
_ANY = re.compile(r"(?:[^\s:]+: )?(?i:fatal )?(?i:error)(?:\[\w+\])?: |(?:\w+\.)*\w*(?:Error|Exception)(?::|$)")

#: What is printed about a program that failed: the program's own message says more.
_WRAPPED = re.compile(
    r"CalledProcessError|Error compiling objects for extension|error: command .* failed with exit |Failed to build"
    r"|(?:Compile|Link)Error: command|collect2: error: ld returned|linker command failed with exit"
    r"|ninja: build stopped|ptxas fatal   : Ptx assembly aborted|nvcc fatal   : Could not open output file"
    r"|subprocess-exited-with-error"
)


@dataclass(frozen=True)
class Place:
    """Where an error is: the file as the compiler printed it, and the line, from 1."""

    file: str
    line: int


def clean(line: str) -> str:
    """A line as a person sees it: without colours, without its end, only what carriage returns left of it."""
    return without_escapes(line[:_LONGEST_LINE]).rstrip().rpartition("\r")[2]


def place_of(line: str) -> Place | None:
    """The place of the error in a line of a compiler, or None."""
    found = _PLACED.match(line)
    return Place(found["file"], int(found["line"] or found["number"])) if found else None


def is_message(line: str) -> bool:
    """Whether the line is a compiler's message about a line of a source, or shows this line."""
    return NEXT_MESSAGE.match(line) is not None or _SHOWN.match(line) is not None


def from_compiler(line: str) -> bool:
    """Whether a compiler, a linker, CMake, make, git or a shell names an error in this line."""
    found = any(form.match(line) for form in (_PLACED, _TOOL, _LINKER, _OTHER))
    return found and not _WRAPPED.search(line)


def from_any_program(line: str) -> bool:
    """Whether any other program names an error in this line."""
    return _ANY.match(line) is not None and not _WRAPPED.search(line)


def is_wrapper(line: str) -> bool:
    """Whether the line says only that another program failed."""
    return _WRAPPED.search(line) is not None


def count_errors(lines: Iterable[str]) -> int:
    """The number of distinct errors at a place; nvcc repeats an error for each architecture."""
    return len({line.strip() for line in lines if _PLACED.match(line) or "undefined reference to" in line})
