"""Which items are beyond the limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from builder.storage.item import Item, Kind, Limits, surplus

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def item(name: str, *, days: float, size: int = 10, kind: Kind = Kind.BUILDS, group: str = "", owns: str = "") -> Item:
    """Return an item that was used so many days ago."""
    used = NOW - timedelta(days=days)
    return Item(kind, name, name, size, used, group=group, owns=frozenset(owns.split()))


ITEMS = [
    item("old", days=9, group="a", owns="old.log both.log"),
    item("middle", days=5, group="a", owns="both.log"),
    item("new", days=1, group="a"),
    item("other", days=7, group="b"),
    item("env", days=6, kind=Kind.ENVIRONMENTS),
    item("old.log", days=9, kind=Kind.LOGS),
    item("both.log", days=5, kind=Kind.LOGS),
    item("free.log", days=3, kind=Kind.LOGS),
]


@pytest.mark.parametrize(
    ("limits", "deleted"),
    [
        (Limits(keep_days=8), "old old.log"),
        (Limits(keep_days=5), "old other env middle old.log both.log"),
        (Limits(keep_newest=1), "old middle old.log both.log"),
        (Limits(keep_newest=2), "old old.log"),
        (Limits(keep_days=6, keep_newest=1), "old old.log"),
        (Limits(max_size=80), ""),
        (Limits(max_size=75), "old old.log"),
        (Limits(max_size=60), "old other old.log"),
        (Limits(max_size=60, keep_newest=1), "old middle old.log both.log"),
        (Limits(max_size=0), "old other env middle free.log new old.log both.log"),
        (Limits(max_size=0, keep_days=100), ""),
        (Limits(keep_newest=0), "old other env middle free.log new old.log both.log"),
    ],
)
def test_surplus(limits: Limits, deleted: str) -> None:
    assert [found.name for found in surplus(ITEMS, limits, NOW)] == deleted.split()
