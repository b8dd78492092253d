"""The parts of a log that show why a build failed: the first error with the lines around it, and the end."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from builder.publish.runs.plain import plain

#: How many lines are shown before and after the first error, and of the end of the log.
BEFORE, AFTER, TAIL = 2, 12, 25
#: Bytes of one line that are read.
_LINE_BYTES = 4000
_ERROR = re.compile(r"(?i)(?:^|\W)(?:error|fatal|failed|exception|undefined reference to)\b")
#: What `FirstError` appends to a line of the log.
_APPENDED = re.compile(r"…?(?: \(\d+ errors in all\))?$")


@dataclass(frozen=True)
class Excerpt:
    """Parts of a log, as safe text."""

    #: Path of the complete log.
    log: str
    #: Number of the first line of `error`; lines count from 1.
    first: int
    #: The first error and the lines around it; empty if the log names none.
    error: tuple[str, ...]
    #: Index of the first error in `error`.
    here: int
    #: Number of the first line of `tail`.
    tail_first: int
    #: The last lines.
    tail: tuple[str, ...]


def read_excerpt(log: Path, sentence: str) -> Excerpt | None:
    """The excerpt of a log, or None if the log cannot be read.

    `sentence` is the error that buildfarm reported; without one, the excerpt has no first error.
    """
    with suppress(OSError):
        found = _error_line(log, sentence) if sentence else 0
        first = max(found - BEFORE, 1)
        error: tuple[str, ...] = ()
        tail: deque[str] = deque(maxlen=TAIL)
        count = 0
        for count, line in enumerate(_lines(log), start=1):  # noqa: B007 - the number of lines
            tail.append(line)
        if found:
            error = tuple(plain(line) for line in islice(_lines(log), first - 1, found + AFTER))
        return Excerpt(str(log), first, error, found - first, count - len(tail) + 1, tuple(map(plain, tail)))
    return None


def _error_line(log: Path, sentence: str) -> int:
    """Number of the line that the reported error comes from, else of the first line that names an error, else 0."""
    wanted = _APPENDED.sub("", sentence)
    named = 0
    for number, line in enumerate(_lines(log), start=1):
        text = line.strip()
        if len(text) > 8 and not text.startswith("+ "):
            # The sentence has the path in the source where the log has an absolute path, and it may be cut at its end.
            if text in wanted or (len(wanted) > 8 and wanted in text):
                return number
            if not named and _ERROR.search(text):
                named = number
    return named


def _lines(log: Path) -> Iterator[str]:
    with log.open("rb") as stream:
        while line := stream.readline(_LINE_BYTES):
            while not line.endswith(b"\n") and (rest := stream.readline(1 << 20)):  # skip the end of a long line
                line += b"\n" if rest.endswith(b"\n") else b""
            yield line.decode(errors="replace").rstrip("\n")
