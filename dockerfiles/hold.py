"""Inside the container: hold.py ENVIRONMENT. Holds a build's environment, and sweeps those that nobody holds.

Environments of all farms of an engine lie in one volume. A lock of the kernel's on a file beside each of them goes
when its container does, however that ends, and every other container sees it: no clock and no process id decides.
The standard library alone, under the image's own Python for tools.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path


def lock(path: Path, *, wait: bool) -> int | None:
    """The descriptor of a locked file that still stands under its name; None when another holds it."""
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass  # swept by another between our two steps: the next one is ours
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def sweep(folder: Path, own: str) -> None:
    """Delete every environment but our own whose container is gone: of a failed build, or of a killed farm."""
    names = {re.sub(r"(?:-test)?(?:\.lock)?$", "", path.name) for path in folder.glob("buildfarm-*")}
    for name in sorted(names - {own}):
        with suppress(OSError):  # gone meanwhile
            descriptor = lock(folder / f"{name}.lock", wait=False)
            if descriptor is not None:
                for left in (name, f"{name}-test"):
                    shutil.rmtree(folder / left, ignore_errors=True)
                (folder / f"{name}.lock").unlink(missing_ok=True)
                os.close(descriptor)


def stay() -> None:
    """Hold what is locked for as long as the container lives, from the background and with nobody's streams."""
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.chdir("/")
        while True:
            signal.pause()


if __name__ == "__main__":
    environment = Path(sys.argv[1])
    lock(environment.with_name(f"{environment.name}.lock"), wait=True)
    sweep(environment.parent, environment.name)
    stay()
