"""What the end of a process says about its task."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.outcome import FAILED, Outcome, Spec
from builder.gate.processes.journal import LOG, TaskRecord
from builder.gate.processes.running_task import OUTPUT_BYTES, RunningTask
from builder.gate.processes.spawn import ForkServerProcess
from builder.gate.processes.verdicts import task_outcomes
from builder.gate.tasks import INSIDE, SEND, CaseFacts, Step, Task


@pytest.mark.parametrize("phase", [SEND, INSIDE])
def test_a_process_that_printed_too_much_and_ended_before_it_was_killed(tmp_path: Path, phase: str) -> None:
    """In the phase SEND the process reports no verdict: its results go to the judge."""
    with (tmp_path / LOG).open("wb") as stream:
        stream.truncate(OUTPUT_BYTES + 1)
    task = Task(CHECKS["values"], CaseFacts(0, "ns::chatty", "plain"), "cpu")
    reported = [] if phase == SEND else [Outcome("values", "ns::chatty", "plain", "passed")]
    running = RunningTask(Step(task, phase), b"", cast("ForkServerProcess", None), tmp_path, 0.0)
    *_, last = task_outcomes(running, 0, TaskRecord(ended=True, outcomes=reported), 0.1, Spec("toy", ["toy"]))
    assert last.verdict == FAILED
    assert "prints more than 64.0 MiB" in last.reason
