"""Lets cibuildwheel copy its own files to any path below `/` of a container whose user is not root.

cibuildwheel copies files such as `/constraints.txt` and `/cibuildwheel-ca-bundle.pem` (since 4.3.4) as the user of the
container. That user cannot create files in `/`, and an image cannot change that: an engine makes the root directory of
each container anew, for root and with mode 755 (seen with Docker Engine 20.10).

So the first program of the container waits until buildfarm has made `/` writable. buildfarm does that as root, through
the engine, before anything else runs in the container. The sticky bit keeps `/usr` and the other directories of root.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from builder.errors import MissingToolError
from builder.images.engine import Engine

#: The first program of a container, in the directory that `write_entry_point` gets.
ENTRY_POINT = "wait-for-root-directory"

#: After 300 s the container goes on: cibuildwheel then reports which file it could not write.
_SCRIPT = """\
#!/bin/sh
tries=0
while [ ! -w / ] && [ "$tries" -lt 3000 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
exec "$@"
"""

#: Interval between two looks for the container, seconds.
_POLL_INTERVAL = 0.1


def write_entry_point(mounted: Path) -> None:
    """Write the first program of a container into the directory that is mounted into it."""
    path = mounted / ENTRY_POINT
    path.write_text(_SCRIPT)
    path.chmod(0o755)


@contextmanager
def writable_root_directory(engine: Engine, owner: str) -> Iterator[None]:
    """Make `/` writable in the container of `owner` that starts while the body runs."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(_POLL_INTERVAL):
            # An engine that does not answer is also an error of the body, which reports it.
            with suppress(MissingToolError):
                if engine.make_root_directory_writable(owner):
                    return

    follower = threading.Thread(target=follow, name="root directory", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()
