"""The folders in which a build compiles. One has the same path on every machine: compilers write source paths.

nvcc derives the names of a file's local symbols from a hash of the source's real path (measured with 13.0: a link
gives the same hash, `-frandom-seed` and prefix maps do not change it). So only a fixed path gives the same GPU code in
every store.
"""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from builder.formats import digest_of
from builder.process import raise_if_interrupted
from builder.resources import WORK_BYTES
from builder.store import ROOT, Store, holder
from builder.untrusted import remove_tree

_PREFIX = "buildfarm.build."


def folder_of(name: str) -> Path:
    """The folder of builds of this name. Its path, which is in options of compilers, does not contain the name.

    torch drops a build's architectures if the letters `arch` are in an option for nvcc, such as -I/…/research/include.
    """
    return ROOT / f"{_PREFIX}{digest_of(name)[:16]}"


@contextmanager
def fixed_folder(name: str, otherwise: Path, on_wait: Callable[[str], object] | None = None) -> Iterator[Path]:
    """An empty folder whose path depends on `name` alone; it is deleted afterwards.

    A lock keeps other buildfarm processes with a build of this name waiting, also those of another project or store;
    `on_wait` gets the `holder` of the lock, and why this process has to wait. Yields `otherwise` when the folder
    belongs to another user or the disk has too little space.
    """
    folder = folder_of(name)
    descriptor = _hold(folder, on_wait)
    if descriptor is None:
        otherwise.mkdir(parents=True, exist_ok=True)
        yield otherwise
        return
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(descriptor)


def clear_abandoned(store: Store) -> None:
    """Delete the folders that killed runs left in the store, and of this user also those of builds; end their programs.

    Locked folders of running builds stay.
    """
    store.clear_abandoned()
    for folder in ROOT.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = _open_own(folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
            finally:
                os.close(descriptor)


def _hold(folder: Path, on_wait: Callable[[str], object] | None) -> int | None:
    """Descriptor of the opened, locked and emptied folder, or None."""
    try:
        if shutil.disk_usage(folder.parent).free < WORK_BYTES:
            return None
        while True:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            try:
                descriptor = _open_own(folder)
            except FileNotFoundError:  # the process that held it has just deleted it
                continue
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(
                    folder.stat(follow_symlinks=False), os.fstat(descriptor)
                ):  # the path still names it
                    break
            os.close(descriptor)
            raise_if_interrupted()
            if on_wait:
                on_wait(f"{holder(folder)}, which compiles in the same folder, {folder}")
                on_wait = None
            time.sleep(0.5)  # another process has the lock and deletes the folder when it is done
    except OSError:
        return None
    for entry in list(folder.iterdir()):  # left by a killed run
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink(missing_ok=True)
    return descriptor


def _open_own(folder: Path) -> int:
    """Raises OSError unless the folder belongs to this user and nobody else can write it: ROOT is open to everyone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        os.close(descriptor)
        raise PermissionError(folder)
    return descriptor
