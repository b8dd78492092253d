"""How the processes of the gate end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import PATIENCE, is_running, wait_until
from tests.unit.gate.test_scheduler import ROOT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_scheduler_ends(tmp_path: Path, number: int) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tests.unit.gate.test_scheduler import gate\n"
        "from builder.gate.processes.scheduler import terminate_as_interrupt, GateInterrupted\n"
        "terminate_as_interrupt()\n"
        f"try: gate(Path({str(tmp_path)!r}), 'ns::loop,ns::loop2', seconds=600)\n"
        "except GateInterrupted as stop: sys.exit(128 + stop.number)\n"
    )
    scheduler = subprocess.Popen([sys.executable, "-c", code])
    try:
        # The process of an op has written to its journal.
        wait_until(lambda: any("float32" in journal.read_text() for journal in tmp_path.glob("*/journal")), "a case")
        below = psutil.Process(scheduler.pid).children(recursive=True)
        assert len(below) >= 2
        os.kill(scheduler.pid, number)
        status = scheduler.wait(PATIENCE)
    finally:
        scheduler.kill()
        scheduler.wait()
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not any(map(is_running, below)), lambda: f"the end of {below}")
