"""A folder of the same name on every machine for a build to compile in: compilers write where their source lay.

nvcc names what is local to a file after a hash of the source's real path (measured, 13.0: the same for a link to it,
and neither `-frandom-seed` nor a prefix map changes it), so only a fixed path gives the same GPU code in another store.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from builder.process import stop_if_ending
from builder.wheels.resources import WORK_BYTES

#: On disk, not in memory as /tmp often is, and there in every Linux (FHS 3.0, 5.15).
ROOT = Path("/var/tmp")  # noqa: S108 - see `_open`

_PREFIX = "buildfarm.build."


@contextmanager
def fixed_folder(name: str, otherwise: Path) -> Iterator[Path]:
    """An empty folder at a path that `name` alone decides, gone afterwards; `otherwise` where there can be none.

    Held against other farms, whatever their store: one that makes the same waits. There can be none when the folder
    is another user's, or when the disk is short.
    """
    folder = ROOT / f"{_PREFIX}{name}"
    descriptor = _hold(folder)
    if descriptor is None:
        otherwise.mkdir(parents=True, exist_ok=True)
        yield otherwise
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def clear_abandoned() -> None:
    """Delete what killed farms of this user left there; what a running one holds stays."""
    for folder in ROOT.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = _open(folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _hold(folder: Path) -> int | None:
    """An open, locked and empty folder's descriptor, or None."""
    try:
        if shutil.disk_usage(folder.parent).free < WORK_BYTES:
            return None
        while True:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            try:
                descriptor = _open(folder)
            except FileNotFoundError:  # its holder was done just here
                continue
            if _lock(descriptor) and _is(folder, descriptor):
                break
            os.close(descriptor)
            stop_if_ending()
            time.sleep(0.5)  # another farm's; once it is done, the folder is another one of the same name
    except OSError:
        return None
    for entry in list(folder.iterdir()):  # of a farm that was killed
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    return descriptor


def _open(folder: Path) -> int:
    """Raises OSError unless it is a folder of this user's that nobody else can write: anyone may make names there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        os.close(descriptor)
        raise PermissionError(folder)
    return descriptor


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(folder: Path, descriptor: int) -> bool:
    """Whether the open folder still stands under its name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(folder.stat(follow_symlinks=False), os.fstat(descriptor))
    return False


def path_flags(folders: Mapping[Path, str], compiler: str) -> dict[str, str]:
    """Variables that make a compiler of that version call these folders otherwise in what it writes.

    CPPFLAGS, since setuptools joins it to Python's own flags where CFLAGS would replace them (setuptools 81); CMake
    reads neither. Nothing for gcc before 8, which does not know the flag.
    """
    if int(compiler.split(".", maxsplit=1)[0]) < 8:
        return {}
    # A comma would end nvcc's -Xcompiler, and an equals sign the folder.
    maps = [
        f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items() if not set(",=") & set(str(folder))
    ]
    return {"CPPFLAGS": " ".join(maps), "NVCC_PREPEND_FLAGS": " ".join(f"-Xcompiler {each}" for each in maps)}


def are_flags(name: str) -> bool:
    """Whether a variable of this name holds a compiler's flags, which are put one after the other."""
    return re.fullmatch(r"[A-Z]*FLAGS|NVCC_(?:PRE|AP)PEND_FLAGS", name) is not None


def joined(variables: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both; `more` wins, but its flags for a compiler come after those of `variables`."""
    flags = {
        name: f"{variables[name]} {text}".strip()
        for name, text in more.items()
        if name in variables and are_flags(name)
    }
    return {**variables, **more, **flags}
