"""A finding: what is wrong in an environment, why, and the commands that mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """A fault breaks programs and makes the exit code 1; a note does not."""

    FAULT = "fault"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One finding."""

    #: Identifier for programs, such as `companion-of-another-torch`.
    code: str
    #: Fault or note.
    level: Level
    #: What is wrong, one sentence.
    what: str
    #: What users see, and the cause.
    why: str
    #: Commands that mend it, to run in this order; empty if no command can.
    cure: tuple[str, ...] = ()
    #: What else a person can do; may be empty.
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "code": self.code,
            "level": str(self.level),
            "what": self.what,
            "why": self.why,
            "cure": list(self.cure),
            "advice": self.advice,
        }
