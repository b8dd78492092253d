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
    """One finding.

    Attributes:
        code: identifier for programs, such as `companion-of-another-torch`.
        level: fault or note.
        what: what is wrong, one sentence.
        why: what users see, and the cause.
        cure: commands that mend it, to run in this order; empty if no command can.
        advice: what else a person can do; may be empty.

    """

    code: str
    level: Level
    what: str
    why: str
    cure: tuple[str, ...] = ()
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
