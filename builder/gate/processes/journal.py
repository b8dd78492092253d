"""The file in which a task records its steps and results, so that the scheduler knows them even after a crash.

One JSON line for each step and result. The file is opened by path for each line, because an extension may close or use
up file descriptors. Only the process that created the journal writes to it: a copy of that process, made by an op that
forks, writes that it exists and exits.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.gate.outcome import Outcome

#: Files in a task directory.
JOURNAL, LOG, STACK = "journal", "log", "stack"


class Journal:
    """Writes the journal of this process; `last_step` is the step begun last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self.last_step = ""

    def step(self, what: str) -> None:
        """Record the step that begins now, e.g. "float16, backward": a crash is reported at this step."""
        self.last_step = what
        self._write({"step": what})

    def outcome(self, outcome: Outcome) -> None:
        """Record an outcome."""
        self._write({"outcome": asdict(outcome)})

    def facts(self, facts: dict[str, Any]) -> None:
        """Record data that is not a verdict."""
        self._write({"facts": facts})

    def end(self) -> None:
        """Record that the task is complete. Without this line the task failed, whatever its exit status is."""
        self._write({"end": True})

    def _write(self, line: dict[str, Any]) -> None:
        copied = os.getpid() != self._process
        text = json.dumps({"forked": True} if copied else line, default=str)
        with open(self._path, "a", encoding="utf-8") as file:  # noqa: PTH123 (pathlib would open no faster)
            file.write(text + "\n")
        if copied:
            os._exit(0)


@dataclass(frozen=True)
class Record:
    """The content of a journal.

    Attributes:
        step: the step begun last, or "".
        outcomes: the outcomes recorded.
        facts: the data recorded.
        ended: whether the task is complete.
        forked: whether an op duplicated the process.

    """

    step: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    forked: bool = False


def read(path: Path) -> Record:
    """Read a journal; ignores an incomplete line, and returns an empty record if there is no file."""
    step, ended, forked = "", False, False
    outcomes: list[Outcome] = []
    facts: dict[str, Any] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        step = line.get("step", step)
        facts.update(line.get("facts", {}))
        ended = ended or "end" in line
        forked = forked or "forked" in line
        if "outcome" in line:
            outcomes.append(Outcome(**line["outcome"]))
    return Record(step, outcomes, facts, ended, forked)
