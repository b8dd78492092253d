"""One run at a time tests in containers: the engine's images, volumes and build cache belong to the whole machine."""

import fcntl
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest


class EngineLock:
    """A plugin of pytest, for the process that runs the tests itself: workers of xdist would wait for each other."""

    def __init__(self) -> None:
        """The lock is taken when the tests are known, so that no test's time limit counts the wait."""
        self._held = ExitStack()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Wait until no other run tests in containers."""
        if session.config.option.collectonly or not any(item.get_closest_marker("docker") for item in session.items):
            return
        # The lock file of another user cannot be opened.
        path = Path(tempfile.gettempdir(), f"buildfarm-test-engine-{os.getuid()}.lock")
        file = self._held.enter_context(path.open("w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run of tests on this machine uses the engine; waiting for its end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)

    def pytest_unconfigure(self) -> None:
        """Let the next run begin."""
        self._held.close()
