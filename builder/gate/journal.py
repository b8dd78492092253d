"""What a child writes while it works, so that its death can be told: one JSON line for each thing begun and found.

Opened anew for each line, by path: an extension that closes or floods descriptors does not silence it. Only the
process that the journal was made for writes it; a copy of it (the op forked) leaves word and ends.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.gate.outcome import Outcome


class Journal:
    """The writing end; `last` is what was told to be done last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._owner = os.getpid()
        self.last = ""

    def doing(self, what: str) -> None:
        """What is done now, in words that follow "in" or "at": the place of a crash."""
        self.last = what
        self._write({"doing": what})

    def outcome(self, outcome: Outcome) -> None:
        """Something found out."""
        self._write({"outcome": asdict(outcome)})

    def facts(self, facts: dict[str, Any]) -> None:
        """Data that is no verdict."""
        self._write({"facts": facts})

    def end(self) -> None:
        """All was done. Without this line, whatever the exit status, the work was cut short."""
        self._write({"end": True})

    def _write(self, line: dict[str, Any]) -> None:
        copied = os.getpid() != self._owner
        text = json.dumps({"forked": True} if copied else line, default=str)
        with open(self._path, "a", encoding="utf-8") as file:  # noqa: PTH123 (pathlib would open no faster)
            file.write(text + "\n")
        if copied:
            os._exit(0)


@dataclass(frozen=True)
class Record:
    """The reading end: what one process left."""

    doing: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    forked: bool = False


def read(path: Path) -> Record:
    """What is there; an unfinished line counts for nothing."""
    doing, ended, forked = "", False, False
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
        doing = line.get("doing", doing)
        facts.update(line.get("facts", {}))
        ended = ended or "end" in line
        forked = forked or "forked" in line
        if "outcome" in line:
            outcomes.append(Outcome(**line["outcome"]))
    return Record(doing, outcomes, facts, ended, forked)
