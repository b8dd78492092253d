"""Folders in which programs of others worked."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Delete a folder, also if a program left folders in it that cannot be written. What cannot be deleted stays."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_symlink() or not folder.is_dir():
        return
    folders = [folder]
    for found in folders:
        with suppress(OSError):
            found.chmod(0o700)
            folders += [Path(entry.path) for entry in os.scandir(found) if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)
