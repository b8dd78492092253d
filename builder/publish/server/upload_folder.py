"""The folder that a server writes an upload to; a lock on the folder says that this server still runs.

The lock works between containers that share the folder, which do not see each other's processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

#: The folder of an index with the folders of running uploads.
FOLDER = ".uploads"
#: Attempts to make a folder while starting servers delete it again and again, which takes them milliseconds.
_ATTEMPTS = 100


class UploadFolder:
    """One folder, which is made later. `path` is its path."""

    def __init__(self, root: Path) -> None:
        self.path = root / FOLDER / uuid4().hex
        self._lock = -1

    def make(self) -> None:
        """Make and lock the folder; raises OSError."""
        for _ in range(_ATTEMPTS):
            self.path.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(self._lock), self.path.stat()):
                    return
            self._unlock()  # a server that started between `mkdir` and `flock` has deleted the folder
        raise FileNotFoundError(self.path)

    def delete(self) -> None:
        """Delete the folder, and unlock it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_leftovers(root: Path) -> None:
    """Delete the folders that no server locks: their servers were killed."""
    for folder in (root / FOLDER).glob("*"):
        with suppress(OSError):  # another server deletes the folder too, or a running upload has locked it
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
