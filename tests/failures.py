"""Print each failure when it happens: a run of CI that is ended from outside prints no summary."""

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
