"""The file in which a task records its steps and results, so that the scheduler knows them even after a crash.

One line for each step and result: an authentication code, the number of the line, and JSON. The code needs the task's
key, which the scheduler makes and passes through a pipe, so that no process without the key can add a line. The file is
opened by path for each line, because an extension may close or use up file descriptors. Only the process that created
the journal writes to it: a copy of that process, made by an op that forks, writes that it exists and exits.
"""

from __future__ import annotations

import hmac
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.gate.outcome import VERDICTS, Outcome
from builder.gate.system.files import read_regular

#: Files in a task directory.
JOURNAL, LOG, STACK = "journal", "log", "stack"
#: Bytes of a key, and the most bytes of a journal.
KEY_BYTES, _MOST = 32, 64 << 20
#: The number of the line that a copy of the process writes.
_OF_A_COPY = -1


class Journal:
    """Writes the journal of this process; `last_step` is the step begun last."""

    def __init__(self, path: str, key: bytes) -> None:
        self._path = path
        self._key = key
        self._lines = 0
        self._process = os.getpid()
        self.last_step = ""

    def step(self, what: str) -> None:
        """Record the step that begins now, e.g. "float16, backward": a crash is reported at this step."""
        self.last_step = what
        self.add(step=what)

    def add(self, **line: Any) -> None:  # noqa: ANN401
        """Record an `outcome` as a dictionary; `facts`, which are no verdict; or that something is complete.

        `done` is the number of a case, in a process that runs several. Without `end` the task failed, whatever its exit
        status is.
        """
        copied = os.getpid() != self._process
        text = json.dumps({"forked": True} if copied else line, default=str)
        number = _OF_A_COPY if copied else self._lines
        with open(self._path, "a", encoding="utf-8", opener=_at_once) as file:
            file.write(f"{_code(self._key, number, text)} {number} {text}\n")
        self._lines += 1
        if copied:
            os._exit(0)


def _at_once(path: str, flags: int) -> int:
    """Open a file, or raise OSError where an op has put a pipe that nobody reads: to open that would never end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o600)


def new_key() -> bytes:
    """Return a key that nobody can guess."""
    return os.urandom(KEY_BYTES)


def _code(key: bytes, number: int, text: str) -> str:
    return hmac.new(key, f"{number} {text}".encode(), "sha256").hexdigest()


@dataclass
class TaskRecord:
    """The content of a journal."""

    #: The step begun last, or "".
    step: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    #: The numbers of the cases that are complete.
    done: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    #: Whether an op duplicated the process.
    forked: bool = False
    #: Whether the file has content that the task's own journal did not write.
    foreign: bool = False


def read(path: Path, key: bytes) -> TaskRecord:
    """Read a journal; an empty record if there is no file, and `foreign` if a line does not have the key's code.

    A line that a crash cut off is ignored.
    """
    record = TaskRecord()
    if not os.path.lexists(path):
        return record
    try:
        data = read_regular(path, _MOST + 1)
    except OSError:
        return TaskRecord(foreign=True)
    *lines, rest = data.split(b"\n")
    expected = 0
    for raw in lines:
        line = _verified(raw, key, expected)
        if line is None or (record.ended and "forked" not in line):
            record.foreign = True
            break
        expected += "forked" not in line
        record.step = line.get("step", record.step)
        record.facts.update(line.get("facts", {}))
        record.ended |= "end" in line
        record.forked |= "forked" in line
        record.outcomes += [line["outcome"]] if "outcome" in line else []
        record.done += [line["done"]] if "done" in line else []
    record.foreign |= len(data) > _MOST or bool(rest and record.ended)
    return record


def _verified(raw: bytes, key: bytes, expected: int) -> dict[str, Any] | None:
    """Return a line with its outcome, or None if the task's journal did not write it at this place."""
    try:
        code, number, text = raw.decode("utf-8").split(" ", 2)
        if not hmac.compare_digest(code, _code(key, int(number), text)) or int(number) not in (expected, _OF_A_COPY):
            return None
        line: dict[str, Any] = json.loads(text)
        if (int(number) == _OF_A_COPY) != ("forked" in line):
            return None
        if "outcome" in line:
            line["outcome"] = Outcome(**line["outcome"])
            return line if line["outcome"].verdict in VERDICTS else None
    except (ValueError, TypeError, RecursionError):
        return None
    return line
