"""Texts that others wrote, made harmless for a terminal."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Escape sequences of terminals: colours and cursor movements, titles and links, and sequences of two characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
#: Control characters besides tab and line feed, and those that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_escapes(text: str) -> str:
    """Return a text without the escape sequences of terminals; other control characters stay."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def visible(text: str) -> str:
    """Return a text without colours, and with `\\x1b` and the like in place of control characters."""
    return _escaped(_COLOUR.sub("", text)) if _CONTROL.search(text) else text


def visible_with_colours(text: str) -> str:
    """Return a text with its colours, and with `\\x1b` and the like in place of every other control character."""
    colours = _COLOUR.findall(text)
    parts = [_escaped(part) for part in _COLOUR.split(text)]
    return parts[0] + "".join(colour + part for colour, part in zip(colours, parts[1:], strict=True))


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
