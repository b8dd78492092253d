"""Limits of a process: it ends with its parent, its memory is limited, and its descendants can be killed.

Linux and the standard library only. If the kernel lacks a feature, the limit is missing and nothing is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterable
from pathlib import Path

from builder.gate.system.process_tree import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE

_PR_SET_PDEATHSIG = 1


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def exit_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; exit now if the parent is not `parent` any more."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Forbid other processes of the same user to read or change the memory and the descriptors of this process.

    A process of root is not stopped by this.
    """
    _prctl(PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo `hide_memory`, which a fork inherits."""
    _prctl(PR_SET_DUMPABLE, 1)


def survive_parent() -> None:
    """Undo `exit_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _kibibytes(pid: int, name: str) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def resident(pid: int) -> int | None:
    """Return the resident anonymous memory of a process in bytes; None if it has ended."""
    amount = _kibibytes(pid, "RssAnon:")
    return None if amount is None else amount * 1024


def shared_out(pids: Iterable[int]) -> int:
    """Return the bytes of memory that processes use, without their files; of a shared page, each has a part."""
    names = ("Pss_Anon:", "Pss_Shmem:")
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            kept = [line for line in lines if line.startswith(names)]
            kept = kept or [line for line in lines if line.startswith("Private_Dirty:")]  # Linux before 5.3
            total += sum(int(line.split()[1]) for line in kept) * 1024
    return total


def threads(pid: int) -> int:
    """Return the number of threads of a process; 1 if unknown."""
    return _kibibytes(pid, "Threads:") or 1


def limit_added_memory(extra: int) -> None:
    """Limit the address space to its current size plus `extra` bytes (0: no limit), and disable core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    size = _kibibytes(os.getpid(), "VmSize:")
    if extra and size:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = size * 1024 + extra
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def remove_memory_limit() -> None:
    """Undo `limit_added_memory`, so that a process that reached the limit can report it."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def kill_group(leader: int) -> None:
    """Send SIGKILL to a process group; does nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
