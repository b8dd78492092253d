"""Amounts as text: bytes, and numbers with their noun."""

from __future__ import annotations


def size_text(size: float) -> str:
    """Return a number of bytes as text: `5 bytes`, `484 KiB`, `5.1 MiB`, `4.8 GiB`."""
    for unit, digits, factor in (("GiB", 1, 2**30), ("MiB", 1, 2**20), ("KiB", 0, 2**10)):
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size:.0f} bytes"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 case`, `2 cases`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
