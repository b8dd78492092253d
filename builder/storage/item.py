"""Things that take disk space and that `buildfarm store prune` may delete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What takes disk space; the value is the word for people."""

    BUILDS = "builds"
    ENVIRONMENTS = "environments"
    SOURCES = "sources"
    INVENTORIES = "inventories"
    PYTHONS = "Pythons"
    OBJECTS = "compiled objects"
    PROOFS = "proofs"
    LOGS = "logs"
    REMOTE = "notes on remote builds"
    RECEIVED = "received wheels"
    RUNS = "runs"
    SCRATCH = "scratch folders"
    IMAGES = "images"
    VOLUMES = "volumes"


@dataclass(frozen=True)
class Item:
    """One thing that can be deleted.

    Attributes:
        kind: what it is.
        name: its name for people.
        target: its path in the store, or its name in the container engine.
        size: bytes that its deletion frees.
        shared: bytes that it shares with other files or images, which its deletion does not free.
        used: when it was used last, or made.
        mark: the name under which a running process marks it as used (`InUse`); empty: nothing uses it.
        group: for a build, the name of its extension.
        owns: targets of logs, proofs and notes that belong to it and are deleted with it.

    """

    kind: Kind
    name: str
    target: str
    size: int
    used: datetime
    shared: int = 0
    mark: str = ""
    group: str = ""
    owns: frozenset[str] = frozenset()

    @property
    def in_engine(self) -> bool:
        """Whether it is in the container engine, which all stores share, and not in the store."""
        return self.kind in (Kind.IMAGES, Kind.VOLUMES)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "kind": str(self.kind),
            "name": self.name,
            "target": self.target,
            "size": self.size,
            "shared": self.shared,
            "used": self.used.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True)
class Limits:
    """What `prune` keeps.

    Attributes:
        keep_days: keep what was used in the last days.
        keep_newest: keep the newest builds of each extension and the newest items of each other kind.
        max_size: delete only until all items together have at most this many bytes.

    """

    keep_days: float | None = None
    keep_newest: int | None = None
    max_size: int | None = None


def surplus(items: Iterable[Item], limits: Limits, now: datetime) -> list[Item]:
    """The items beyond the limits, the least recently used first.

    `keep_days` and `keep_newest` protect items. Without `max_size` everything else is surplus. A log, a proof or a
    note that belongs to builds is surplus with the last of them.
    """
    everything = list(items)
    owned = {target for item in everything for target in item.owns}
    candidates = sorted((item for item in everything if item.target not in owned), key=lambda item: item.used)
    protected = {item.target for item in candidates if _is_recent(item, limits, now)} | _newest(candidates, limits)
    total = sum(item.size for item in everything)
    found: list[Item] = []
    for item in candidates:
        if limits.max_size is not None and total <= limits.max_size:
            break
        if item.target not in protected:
            found.append(item)
            total -= item.size
    kept = {target for item in candidates if item not in found for target in item.owns}
    return found + [item for item in everything if item.target in owned - kept]


def _is_recent(item: Item, limits: Limits, now: datetime) -> bool:
    return limits.keep_days is not None and (now - item.used).total_seconds() < limits.keep_days * 86400


def _newest(candidates: list[Item], limits: Limits) -> set[str]:
    """Targets of the newest items of each group; `candidates` are sorted by use."""
    groups: dict[tuple[Kind, str], list[str]] = {}
    for item in candidates:
        groups.setdefault((item.kind, item.group), []).append(item.target)
    newest = limits.keep_newest or 0
    return {target for targets in groups.values() for target in (targets[-newest:] if newest else ())}
