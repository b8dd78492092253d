"""Text from logs, wheels and the command line without anything that a terminal or a browser would obey."""

from __future__ import annotations

import re

from builder.untrusted.plain_text import without_escapes

#: Control characters, and those that change the direction of text or cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
#: Characters of one line that are shown.
LONGEST_LINE = 400


def plain(text: str, longest: int = LONGEST_LINE) -> str:
    """Lines without escape sequences; other control characters are shown as U+FFFD, and long lines are cut.

    Of a line that a program wrote over with carriage returns, the last state is kept.
    """
    return "\n".join(_line(line, longest) for line in text.replace("\r\n", "\n").split("\n"))


def _line(line: str, longest: int) -> str:
    written = without_escapes(line).rstrip("\r").rpartition("\r")[2]
    safe = _UNSAFE.sub("\ufffd", written)
    return safe if len(safe) <= longest else f"{safe[:longest]} … ({len(safe) - longest} more characters)"
