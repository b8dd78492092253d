"""Small parts of a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

GENERATED = "<!-- Generated from the code by `python -m docs.generate`: do not edit. -->"


def page(title: str, *parts: str) -> str:
    """A page of paragraphs with its heading, and a final newline."""
    return "\n\n".join([GENERATED, f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |" for line in lines)


def code(text: str) -> str:
    """The text as code; empty for no text."""
    return f"`{text}`" if text else ""


def one_line(text: str) -> str:
    """A docstring's paragraph on one line, its ``code`` in single backquotes."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def sentence(text: str) -> str:
    """Begin with a capital letter and end with a full stop."""
    text = one_line(text)
    first = text.split(" ", maxsplit=1)[0]
    start = text[:1].upper() if first.isalpha() else text[:1]  # not `sha256`
    return text and start + text[1:] + ("" if text.endswith((".", ":", "?")) else ".")
