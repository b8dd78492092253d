"""Marks of what running buildfarm processes use, so that `buildfarm store prune` does not delete it.

A mark is a shared lock on one byte of a file; the byte is chosen by the name. The kernel removes the marks of a process
when it ends. The locks belong to the open file (F_OFD_SETLK, fcntl(2)), so threads and several stores do not disturb
each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from builder.process import raise_if_interrupted

#: `struct flock` of fcntl(2): type, whence, start, length, process.
_FLOCK = "hhqqi0q"


class InUse:
    """The marks in one file. The marks of an object last until the object is deleted or the process ends."""

    def __init__(self, file: Path) -> None:
        try:
            descriptor = os.open(file, os.O_RDWR)  # Linux refuses O_CREAT for the file of a different user in /var/tmp
        except FileNotFoundError:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            with suppress(OSError):
                os.fchmod(descriptor, 0o666)  # whatever the umask is
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def mark(self, name: str) -> None:
        """Mark a name as used. Waits while `store prune` deletes what the name stands for."""
        while not self._lock(fcntl.F_RDLCK, name):
            raise_if_interrupted()
            time.sleep(0.02)

    def unmark(self, name: str) -> None:
        """Remove the mark of this object; marks of others stay."""
        self._lock(fcntl.F_UNLCK, name)

    @contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Yield whether nobody uses the name. If so, nobody can mark it while the body runs."""
        claimed = self._lock(fcntl.F_WRLCK, name)
        try:
            yield claimed
        finally:
            if claimed:
                self._lock(fcntl.F_UNLCK, name)

    def _lock(self, kind: int, name: str) -> bool:
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, start, 1, 0))
        except BlockingIOError:
            return False
        return True
