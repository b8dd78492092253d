"""Reads files that a process of the extension may have replaced, and the names of the files in its memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, most: int, *, end: bool = False) -> bytes:
    """Return the content of a file, at most `most` bytes; with `end` the last bytes instead of the first.

    Raises OSError for a link, a device or a pipe, which could block the reader for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(max(0, status.st_size - most) if end else 0)
            return file.read(min(most, status.st_size))  # Python allocates as much as it is asked for
    finally:
        os.close(descriptor)


def mapped_files() -> set[str]:
    """Return the path of each file that this process has mapped; a deleted file has the suffix " (deleted)"."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/" in line}
