"""The line of a source that an error is about, with its number and a mark below the column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from builder.diagnosis.messages import NEXT_MESSAGE, Place, place_of
from builder.untrusted.plain_text import visible

#: Characters of a line that are shown: around the mark, or from the beginning.
WIDTH = 110
#: Lines of one message that are read, and lines before it that say how the compiler came to the place.
_MESSAGE, _BEFORE = 60, 80
#: Bytes of a source file that are read to find a line.
_FILE_BYTES = 8 << 20

_GUTTER = re.compile(r"\s*(?:\d+ |)\| ?(?P<text>.*)")
_MARK = re.compile(r"[\s~^|]*\^[\s~^|]*")
_INCLUDED = re.compile(r"(?:In file included| +) ?from (?P<file>[^\s:]+):(?P<line>\d+)")
_REQUIRED = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?:\s+required from here")
_ON_THE_WAY = re.compile(r"[^\s:]+: In |[^\s:]+:\d+(?::\d+)?:\s+(?:required|recursively) |\s*(?:\d+ )?\|")
#: What gcc and nvcc print after the message.
_BELOW = (
    re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):\d+: note: in expansion of macro"),
    re.compile(r"detected during .*at line (?P<line>\d+) of (?P<file>\S+)"),
    re.compile(r"^\s+instantiation of .*at line (?P<line>\d+) of (?P<file>\S+)"),
)


def message_lines(lines: Sequence[str], n: int) -> list[str]:
    """The lines of the message that begins at line `n`: up to an empty line, the next message, or the shown source.

    CMake's message begins after an empty line or none, and is indented.
    """
    found = [lines[n]]
    cmake = "CMake Error" in lines[n]
    for line in islice(lines, n + 1, n + _MESSAGE):
        if cmake and not line.strip() and len(found) == 1:
            continue
        ended = not line.startswith("  ") if cmake else NEXT_MESSAGE.match(line) or _GUTTER.fullmatch(line)
        if ended or not line.strip() or _MARK.fullmatch(line):
            break
        found.append(line)
    return found


def excerpt_of(lines: Sequence[str], n: int, place: Place, source: str, tree: Path | None) -> tuple[str, ...]:
    """The source line of the error at line `n`, and how the compiler came there if the file is not of the source."""
    code, mark = _printed(lines, n)
    real = source_line(place, source, tree)
    if real is not None and real != code:  # nvcc prints the line without macros and tabs
        code, mark = real, ""
    shown = _numbered(place.line, code, mark) if code.strip() else []
    if _foreign(place.file, source):
        shown += _way(lines, n, source, tree)
    return tuple(shown)


def source_excerpt(place: Place, source: str, tree: Path | None) -> tuple[str, ...]:
    """The line at a place with its number, or nothing if it cannot be read."""
    code = source_line(place, source, tree)
    return tuple(visible(line) for line in _numbered(place.line, code, "")) if code and code.strip() else ()


def source_line(place: Place, source: str, tree: Path | None) -> str | None:
    """A line of a file of the source; None if the file is not below `tree`, is large, or has no such line."""
    if tree is None or _foreign(place.file, source):
        return None
    try:
        path = (tree / place.file.removeprefix(f"{source}/")).resolve()
        if not path.is_relative_to(tree.resolve()) or not path.is_file() or path.stat().st_size > _FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a name with a null byte
        return None
    return next((line.expandtabs() for line in islice(text.split("\n"), place.line - 1, place.line)), None)


def _foreign(file: str, source: str) -> bool:
    return file.startswith("/") and not file.startswith(f"{source}/")


def _printed(lines: Sequence[str], n: int) -> tuple[str, str]:
    """The source line that the compiler printed below its message, and the line with the mark; empty if it did not."""
    for k in range(n + 2, min(n + _MESSAGE, len(lines))):
        code, mark = (found["text"] if (found := _GUTTER.fullmatch(line)) else line for line in lines[k - 1 : k + 1])
        if _MARK.fullmatch(mark):
            return code.expandtabs(), mark
        if not code.strip() or NEXT_MESSAGE.match(lines[k - 1]):
            break
    return "", ""


def _numbered(number: int, code: str, mark: str) -> list[str]:
    """The line cut to WIDTH characters around the mark, with its number."""
    at = min((mark.find(sign) for sign in "^~" if sign in mark), default=0)
    start = max(0, at - WIDTH // 2) if len(code) > WIDTH else 0
    shown = [f"{number:>5} | {code[start : start + WIDTH].rstrip()}"]
    if mark.strip():
        shown.append(f"      | {mark[start : start + WIDTH].rstrip()}")
    return shown


def _way(lines: Sequence[str], n: int, source: str, tree: Path | None) -> list[str]:
    """The line of the source that includes or uses the code of others at line `n`; empty if it is not known."""
    below = list(islice(lines, n + 1, n + _MESSAGE))
    end = next((k for k, line in enumerate(below) if not line.strip() or place_of(line)), len(below))
    steps = [found for line in below[:end] for form in _BELOW if (found := form.search(line))]
    for line in reversed(lines[max(0, n - _BEFORE) : n]):
        found = _REQUIRED.match(line) or _INCLUDED.match(line)
        if found:
            steps.insert(0, found)
        elif not _ON_THE_WAY.match(line):
            break
    for found in reversed(steps):
        place = Place(found["file"], int(found["line"]))
        if not _foreign(place.file, source):
            verb = "included" if found.re is _INCLUDED else "used"
            code = source_line(place, source, tree)
            shown = _numbered(place.line, code, "") if code and code.strip() else []
            return [f"{verb} in {place.file}:{place.line}", *shown]
    return []
