"""Confines a program: it, and every program that it starts, can change files only below the folders that are given.

The kernel's Landlock does this for any user, in a container too, and nothing takes it back: not a child, not root. It
also keeps the program from tracing or signalling processes outside. What it does not stop: reading, the network,
requests to servers over sockets, and changes of mode or times of the user's own files.

`confined` returns the command line: this file, run as a program, restricts itself and then becomes the other program.
It imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

#: System calls, with the same numbers on every architecture that Linux added Landlock to; linux/landlock.h.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38

#: Rights of the file system that are withheld: write, remove, make, move to a different folder, truncate.
_WRITE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGE = _WRITE | sum(1 << bit for bit in range(4, 14))

#: Nobody makes device files: root could open a disk by one.
_DEVICE_FILES = 1 << 6 | 1 << 11

#: What is left to root: its own files and users. No modules, mounts, disks or tracing, which Landlock does not cover.
_KEPT_CAPABILITIES = range(8)
_DROP_CAPABILITY, _LAST_CAPABILITY = 24, 40

#: Signals and abstract sockets do not leave the program's own processes (version 6, Linux 6.12).
_SCOPES = 0b11

#: The first version with a right to move files to a different folder, without which compilers fail (Linux 5.19), and
#: the first that can withhold truncation (Linux 6.2).
_USABLE, _SOUND = 2, 3

#: Devices that programs write: no disk is among them. POSIX semaphores and torch's shared memory are files of /dev/shm.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "dri", "dxg", "kfd")


def confined(argv: Sequence[str], writable: Iterable[Path]) -> list[str]:
    """The command line that runs `argv` with nothing but these existing folders writable.

    Where the kernel cannot do that (`weakness`), the program runs with less confinement, or with none.
    """
    if _version() < _USABLE:
        return list(argv)
    folders = [word for folder in writable for word in ("--write", str(folder))]
    return [sys.executable, "-I", "-S", "-B", __file__, *folders, "--", *argv]


def weakness() -> str:
    """What this machine's kernel lets a confined program change all the same; empty for a sound confinement."""
    if _version() >= _SOUND:
        return ""
    if _version() >= _USABLE:
        return "empty files of your user (the Landlock of this kernel is older than that of Linux 6.2)"
    return "change every file of your user (this kernel has no Landlock, or an older one than Linux 5.19)"


@cache
def _version() -> int:
    return _system_call(_CREATE_RULESET, None, 0, _GET_VERSION)


def _system_call(*arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(*words))


def _restrict(writable: Sequence[str]) -> None:
    """Confine this process for good; raises OSError when a folder does not exist or the kernel refuses."""
    version = _version()
    handled = _CHANGE | (_TRUNCATE if version >= _SOUND else 0)
    numbers = (ctypes.c_uint64 * 3)(handled, 0, _SCOPES if version >= 6 else 0)
    ruleset = _checked(_CREATE_RULESET, numbers, 24 if version >= 6 else 8, 0)
    for path in writable:
        _allow(ruleset, path, handled)
    for device in (*_DEVICES, *(path.name for path in Path("/dev").glob("nvidia*"))):
        with suppress(FileNotFoundError):
            _allow(ruleset, f"/dev/{device}", handled)
    library = ctypes.CDLL(None, use_errno=True)
    for number in range(len(_KEPT_CAPABILITIES), _LAST_CAPABILITY + 1):
        library.prctl(_DROP_CAPABILITY, number, 0, 0, 0)  # fails for a user who has none
    if library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _checked(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        of_path = rights & ~_DEVICE_FILES if Path(path).is_dir() else rights & (_WRITE | _TRUNCATE)
        # struct landlock_path_beneath_attr, which is packed.
        rule = of_path.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _checked(number: int, *arguments: object) -> int:
    result = _system_call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return result


def _main(words: list[str]) -> None:
    end = words.index("--")
    try:
        _restrict(words[1:end:2])
        os.execvp(words[end + 1], words[end + 1 :])  # noqa: S606 - the arguments need no shell
    except OSError as error:
        sys.exit(f"error: {words[end + 1]} cannot be started with its file access restricted: {error}")


if __name__ == "__main__":
    _main(sys.argv[1:])
