"""Amounts of bytes as text."""

from __future__ import annotations


def size_text(size: float) -> str:
    """Return a number of bytes as text: `5 bytes`, `484 KiB`, `5.1 MiB`, `4.8 GiB`."""
    for unit, digits, factor in (("GiB", 1, 2**30), ("MiB", 1, 2**20), ("KiB", 0, 2**10)):
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size:.0f} bytes"
