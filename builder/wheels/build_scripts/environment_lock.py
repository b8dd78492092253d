"""A build's environment in the shared volume: locked while its container lives, deleted when nobody holds it.

Environments of all runs of an engine are in one volume. A kernel lock on a file beside each environment ends when its
container ends, however it ends, and every container sees it: no clock and no process identifier decides.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path


def hold(environment: Path) -> None:
    """Lock an environment for as long as this container lives, and delete those that nobody holds."""
    lock(environment.with_name(f"{environment.name}.lock"), wait=True)
    sweep(environment.parent, environment.name)
    stay()


def lock(path: Path, *, wait: bool) -> int | None:
    """The descriptor of a locked file that still has its name; None when the file is locked and `wait` is false."""
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass  # a different container deleted it between the two steps: the next file is ours
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def sweep(folder: Path, own: str) -> None:
    """Delete every environment but our own whose container is gone: of a failed build, or of a killed run."""
    names = {re.sub(r"(?:-test)?(?:\.lock)?$", "", path.name) for path in folder.glob("buildfarm-*")}
    for name in sorted(names - {own}):
        with suppress(OSError):  # deleted in the meantime
            descriptor = lock(folder / f"{name}.lock", wait=False)
            if descriptor is not None:
                for abandoned in (name, f"{name}-test"):
                    shutil.rmtree(folder / abandoned, ignore_errors=True)
                (folder / f"{name}.lock").unlink(missing_ok=True)
                os.close(descriptor)


def stay() -> None:
    """Fork a process that keeps this process's locks until the container ends, without any of its streams."""
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.chdir("/")
        while True:
            signal.pause()
