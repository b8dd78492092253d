"""The journal of a process is readable however the process ended."""

from __future__ import annotations

import os
from pathlib import Path

from builder.gate.outcome import PASSED, Outcome
from builder.gate.processes.journal import Journal, read


def test_round_trip(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    journal.step("float32")
    journal.outcome(Outcome("values", "ns::op", "plain", PASSED, "2 dtypes"))
    journal.facts({"gpus": []})
    record = read(tmp_path / "journal")
    assert (record.step, record.ended, record.forked) == ("float32", False, False)
    assert record.outcomes == [Outcome("values", "ns::op", "plain", PASSED, "2 dtypes")]
    journal.end()
    assert read(tmp_path / "journal").ended


def test_an_incomplete_line_and_a_missing_file_are_ignored(tmp_path: Path) -> None:
    assert not read(tmp_path / "missing").ended
    (tmp_path / "journal").write_text('{"step": "x"}\n{"end": tr', encoding="utf-8")
    assert read(tmp_path / "journal").step == "x"
    assert not read(tmp_path / "journal").ended


def test_a_copy_of_the_process_records_itself_and_exits(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    pid = os.fork()
    if pid == 0:
        journal.end()
        os._exit(9)  # not reached
    assert os.waitpid(pid, 0)[1] == 0
    record = read(tmp_path / "journal")
    assert record.forked
    assert not record.ended
