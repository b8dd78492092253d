"""What holds a process in its bounds: it dies with its parent, takes no more than allowed, leaves nothing behind.

Linux and the standard library only. Nothing here raises where the kernel lacks a feature: a bound less is not a fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends, however it ends; end now if it is not `parent` any more."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take `die_with_parent` back."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """The children of this process, those of its main thread; empty where the kernel does not tell."""
    pid = os.getpid()
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _kibibytes(pid: int, name: str) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def resident(pid: int) -> int | None:
    """Bytes of memory a process has, without what it shares with files; None where it is gone."""
    amount = _kibibytes(pid, "RssAnon:")
    return None if amount is None else amount * 1024


def threads(pid: int) -> int:
    """How many threads a process has; 1 where the kernel does not tell."""
    return _kibibytes(pid, "Threads:") or 1


def add_at_most(extra: int) -> None:
    """Limit this process's address space to what it has now and `extra` bytes more; its core files to none."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    size = _kibibytes(os.getpid(), "VmSize:")
    if extra and size:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = size * 1024 + extra
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def lift() -> None:
    """Take the limit of `add_at_most` back, so that running into it can be told."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def kill_group(leader: int) -> None:
    """SIGKILL to a process group; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
