"""Plugins of pytest for all tests: failures are printed at once, and one run at a time uses the container engine."""

import fcntl
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest


class Failures:
    """A plugin of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        """`config` is that of the process that prints the results."""
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a test that failed, and the end of its report."""
        if report.failed:
            writer = self._config.get_terminal_writer()
            writer.line()
            writer.line(f"FAILED ({report.when}) {report.nodeid}")
            lines = report.longreprtext.splitlines()
            # All errors of a chain: the last one may be that of the clean-up after the first.
            shown = [line for line in lines[:-30] if line.startswith("E ")] + lines[-30:]
            # With what the test and its programs printed.
            for line in [*shown, *report.capstdout.splitlines()[-60:]]:
                writer.line(f"    {line}")
            writer.flush()


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
