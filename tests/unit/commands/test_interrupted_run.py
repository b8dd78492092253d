"""A signal ends a run of builds wherever the main thread is, and whichever thread the kernel gives the signal to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import os, signal, sys, time
from pathlib import Path
from builder import process
from builder.commands.building.story import BuildRun
from builder.log import verbosity
from builder.store import Store

moment, root = sys.argv[1:]
process.handle_signals()
# Signals now reach only the thread of the build.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

class Run(BuildRun):
    stored = prove = None
    log = lambda self, build: self.store.log(build)

    def start(self, builds):
        return 1, self.ordered(builds)

    def ordered(self, builds):
        yield from builds
        if moment == "submit":
            raise KeyboardInterrupt

    def make(self, build, log, stage):
        if moment == "other thread":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            process.raise_if_interrupted()
            time.sleep(0.02)
        print("the build went on")

verbosity.quiet = True
try:
    Run(Store(Path(root)), {}, None).build_all({"build": False})
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("moment", ["other thread", "submit"])
def test_a_signal_ends_the_running_builds(tmp_path: Path, moment: str) -> None:
    argv = [sys.executable, "-c", PROGRAM, moment, str(tmp_path / "store")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "interrupted\n", done.stderr
