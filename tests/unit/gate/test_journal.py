"""The journal of a process is readable however the process ended, and shows what others write into it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.gate.outcome import PASSED, Outcome
from builder.gate.processes.journal import Journal, new_key, read

KEY = new_key()
DONE = Outcome("values", "ns::op", "plain", PASSED, "2 dtypes")


def test_round_trip(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"), KEY)
    journal.step("float32")
    journal.outcome(DONE)
    journal.facts({"gpus": []})
    record = read(tmp_path / "journal", KEY)
    assert (record.step, record.ended, record.forked, record.foreign) == ("float32", False, False, False)
    assert record.outcomes == [DONE]
    journal.end()
    assert read(tmp_path / "journal", KEY).ended


def test_an_incomplete_line_and_a_missing_file_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert not read(path, KEY).ended
    Journal(str(path), KEY).step("x")
    with path.open("ab") as file:
        file.write(b'{"end": tr')
    record = read(path, KEY)
    assert (record.step, record.ended, record.foreign) == ("x", False, False)


@pytest.mark.parametrize(
    "line",
    [
        b'{"end": true}\n',
        b"\xff\xfe\n",
        b"[]\n",
        b"0" * 64 + b' 1 {"end": true}\n',
        b"0" * 64 + b' x {"end": true}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_line_without_the_key_is_noticed(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path), KEY)
    journal.outcome(DONE)
    with path.open("ab") as file:
        file.write(line)
    journal.end()
    record = read(path, KEY)
    assert record.foreign
    assert not record.ended


def test_lines_cannot_be_repeated_left_out_or_taken_from_another_task(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path), KEY)
    journal.step("x")
    journal.outcome(DONE)
    journal.end()
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for changed in (first + first, first + third, second + third, first + second + third + third):
        path.write_bytes(changed)
        assert read(path, KEY).foreign
    path.write_bytes(first + second + third)
    assert not read(path, KEY).foreign
    assert read(path, new_key()).foreign


def test_a_journal_that_is_not_a_file_does_not_block_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        assert read(tmp_path / name, KEY).foreign


def test_a_copy_of_the_process_records_itself_and_exits(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"), KEY)
    pid = os.fork()
    if pid == 0:
        journal.end()
        os._exit(9)  # not reached
    assert os.waitpid(pid, 0)[1] == 0
    record = read(tmp_path / "journal", KEY)
    assert record.forked
    assert not record.ended
