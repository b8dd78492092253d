"""`buildfarm store prune`: delete what is beyond the limits and what no running process uses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from builder.images.engine import Engine
from builder.storage.engine_storage import EngineStorage
from builder.storage.inventory import store_items
from builder.storage.item import Item, Kind, Limits, surplus
from builder.store import Store
from builder.wheels.build_dir import clear_abandoned


@dataclass(frozen=True)
class Pruned:
    """What a prune deleted, or would delete.

    Attributes:
        deleted: the deleted items.
        in_use: items that are kept because a running process or a container uses them.
        dry_run: whether nothing was deleted.

    """

    deleted: tuple[Item, ...]
    in_use: tuple[Item, ...]
    dry_run: bool


def prune_store(store: Store, limits: Limits, *, engine: bool = False, dry_run: bool = False) -> Pruned:
    """`prune`, with `engine` also of the container engine; raises MissingToolError when that does not answer."""
    if not engine:
        return prune(store, limits, dry_run=dry_run)
    opened = Engine()
    if problem := opened.problem():
        raise problem
    return prune(store, limits, engine=EngineStorage(opened, store), dry_run=dry_run)


def prune(store: Store, limits: Limits, *, engine: EngineStorage | None = None, dry_run: bool = False) -> Pruned:
    """Delete what is beyond the limits, the least recently used first.

    With `engine`, also the images and volumes that buildfarm made in the container engine. What a running process uses
    is kept, even beyond the limits. The files of killed runs are deleted as well.
    """
    if not dry_run:
        store.clear_abandoned()
        clear_abandoned()
    items = [item for item in store_items(store) if item.kind is not Kind.SCRATCH]
    items += engine.items() if engine else []
    deleted: list[Item] = []
    in_use: list[Item] = []
    for item in surplus(items, limits, datetime.now(UTC)):
        if engine and item.in_engine:
            done = engine.is_unused(item) if dry_run else engine.delete(item)
        else:
            done = store.is_unused(item.mark) if dry_run else store.delete(item.target, item.mark)
        (deleted if done else in_use).append(item)
    return Pruned(tuple(deleted), tuple(in_use), dry_run)
