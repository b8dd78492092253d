"""Amounts as text: bytes, numbers with their noun, lists that name the first and count the others; and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def size_text(size: float) -> str:
    """Return a number of bytes as text: `5 bytes`, `484 KiB`, `5.1 MiB`, `4.8 GiB`."""
    for unit, digits, factor in (("GiB", 1, 2**30), ("MiB", 1, 2**20), ("KiB", 0, 2**10)):
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size:.0f} bytes"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 case`, `2 cases`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join_names(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and the number of the others: `a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def subject(names: Sequence[str], verb: str) -> str:
    """Names and a verb of their number: `a.so needs`, `a.so, b.so need`."""
    of_one = {"have": "has", "search": "searches"}.get(verb, f"{verb}s")
    return f"{join_names(names)} {verb if len(names) > 1 else of_one}"


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, keys and values in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
