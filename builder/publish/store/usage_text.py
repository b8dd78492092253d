"""What `store du` and `store prune` print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from builder.gate.system.sizes import size_text
from builder.publish.terminal import to_text
from builder.storage.item import Item, Kind


def usage_text(store: Path, items: Sequence[Item], others: Mapping[str, int], notes: Sequence[str]) -> str:
    """A table: what takes how much. `others` are the sizes of caches that buildfarm shares with other programs."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in ("what", "items", "size", "shared", "last use"):
        table.add_column(column, justify="left" if column in ("what", "last use") else "right", no_wrap=True)
    for kind in Kind:
        if found := [item for item in items if item.kind is kind]:
            shared = sum(item.shared for item in found)
            last = max(item.used for item in found)
            size = size_text(sum(item.size for item in found))
            table.add_row(str(kind), str(len(found)), size, size_text(shared) if shared else "", f"{last:%Y-%m-%d}")
    lines: list[Table | str] = [f"store: {escape(str(store))}", "", table, ""] if items else [f"store: {store}, empty"]
    lines.append(f"Deleting the whole store frees {size_text(_size(items, engine=False))}.")
    if any(item.in_engine for item in items):
        freed = size_text(_size(items, engine=True))
        lines.append(f"Deleting these images and volumes, which all stores on this machine share, frees {freed}.")
    if any(item.shared for item in items):
        lines.append(
            "shared: files that are also in uv's cache or in other environments, and layers of other images."
            " Deleting one item does not free them."
        )
    lines += [f"{escape(name)}: {size_text(size)}; other programs use it too" for name, size in others.items()]
    return to_text(*lines, *map(escape, notes))


def usage_json(store: Path, items: Sequence[Item], others: Mapping[str, int], notes: Sequence[str]) -> str:
    """The same as JSON, with every item."""
    data = {
        "store": str(store),
        "size": _size(items, engine=False),
        "engine_size": _size(items, engine=True),
        "items": [item.to_json() for item in items],
        "others": dict(others),
        "notes": list(notes),
    }
    return json.dumps(data, indent=1) + "\n"


def _size(items: Sequence[Item], *, engine: bool) -> int:
    """Bytes that deleting the items of the store frees, or those of the container engine."""
    return sum(item.size for item in items if item.in_engine is engine)


def prune_text(deleted: Sequence[Item], in_use: Sequence[Item], *, dry_run: bool) -> str:
    """Each deleted item, and how much space that frees."""
    lines = [f"{item.kind}: {item.name}  {size_text(item.size)}" for item in deleted]
    lines += [f"kept, because it is in use: {item.kind}: {item.name}" for item in in_use]
    freed = size_text(sum(item.size for item in deleted))
    count = f"{len(deleted)} item{'s' * (len(deleted) != 1)}"
    lines.append(f"{count} would be deleted, which frees {freed}." if dry_run else f"{count} deleted, {freed} freed.")
    return "".join(f"{line}\n" for line in lines)


def prune_json(deleted: Sequence[Item], in_use: Sequence[Item], *, dry_run: bool) -> str:
    """The same as JSON."""
    data = {
        "dry_run": dry_run,
        "freed": sum(item.size for item in deleted),
        "deleted": [item.to_json() for item in deleted],
        "in_use": [item.to_json() for item in in_use],
    }
    return json.dumps(data, indent=1) + "\n"
