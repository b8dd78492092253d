"""What the store holds: sizes of its folders, and which items `store prune` deletes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from builder.store import RUN, Store
from builder.wheels.build_dir import clear_abandoned

#: The folders with items that can be deleted. A running command marks each item that it uses, or RUN for all of them.
_MARKED = ("builds", "envs", "received", "runs")
_UNMARKED = (
    "inventories",
    "logs",
    "objects",
    "proofs",
    "remote",
    "sources/git",
    "sources/sdists",
    "sources/wheels",
)


@dataclass(frozen=True)
class Size:
    """Bytes on disk: those that a deletion frees, and those in files that are also linked elsewhere."""

    freed: int
    shared: int


@dataclass(frozen=True)
class Item:
    """Something in the store that can be deleted."""

    #: Its path in the store.
    target: str
    #: The name under which a running process marks it as used (`InUse`).
    mark: str
    #: When it was used last, or made.
    used: datetime
    #: Bytes that its deletion frees.
    size: int = 0
    #: The wheel or the archive in it, or empty.
    content: str = ""


@dataclass(frozen=True)
class Pruned:
    """What a prune deleted or would delete, and what it kept because a running process uses it."""

    deleted: tuple[Item, ...]
    in_use: tuple[Item, ...]


def folder_sizes(store: Store) -> dict[str, Size]:
    """The size of each folder of the store that is not empty, the largest first."""
    sizes = {path.name: disk_size(path) for path in store.root.iterdir() if path.is_dir()}
    filled = [(name, size) for name, size in sizes.items() if size.freed or size.shared]
    return dict(sorted(filled, key=lambda each: (-each[1].freed, each[0])))


def disk_size(path: Path) -> Size:
    """Measure a file or a folder; a file with several links inside is counted once."""
    links: dict[tuple[int, int], tuple[int, int, int]] = {}
    for stat in _stats(path):
        key = (stat.st_dev, stat.st_ino)
        seen = links.get(key, (0, 0, 0))[0]
        links[key] = (seen + 1, stat.st_nlink, stat.st_blocks * 512)
    freed = sum(size for seen, all_links, size in links.values() if seen >= all_links)
    return Size(freed, sum(size for _, _, size in links.values()) - freed)


def _stats(path: Path) -> Iterator[os.stat_result]:
    """The files at and below a path; what is deleted meanwhile is left out."""
    with suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            yield path.lstat()
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _stats(Path(entry.path))
                else:
                    with suppress(OSError):
                        yield entry.stat(follow_symlinks=False)


def prune(store: Store, keep_days: float, *, dry_run: bool = False) -> Pruned:
    """Delete what was not used for some days and what no running process uses, the least recently used first.

    The files of killed runs are deleted as well.
    """
    if not dry_run:
        clear_abandoned(store)
    begin = datetime.now(UTC) - timedelta(days=keep_days)
    deleted: list[Item] = []
    in_use: list[Item] = []
    for item in sorted((item for item in _items(store) if item.used <= begin), key=lambda item: item.used):
        path = store.root / item.target
        found = Item(item.target, item.mark, item.used, disk_size(path).freed, _content(path))
        done = store.is_unused(item.mark) if dry_run else store.delete(item.target, item.mark)
        (deleted if done else in_use).append(found)
    return Pruned(tuple(deleted), tuple(in_use))


def _items(store: Store) -> Iterator[Item]:
    """Everything that can be deleted: not the lock files, and not the locked versions of packages in `envs/`."""
    for folder in (*_MARKED, *_UNMARKED):
        for path in _entries(store.root / folder):
            target = f"{folder}/{path.name}"
            if folder != "envs" or path.is_dir():
                used = store.last_use(target)
                if folder == "objects":  # sccache sets the time of each object that it finds
                    used = max([used, *(datetime.fromtimestamp(stat.st_mtime, UTC) for stat in _stats(path))])
                yield Item(target, target if folder in _MARKED else RUN, used)


def _content(path: Path) -> str:
    return next((entry.name for entry in _entries(path) if entry.name.endswith((".whl", ".tar.gz", ".zip"))), "")


def _entries(folder: Path) -> Sequence[Path]:
    """The entries of a folder without hidden files, sorted; none if the folder does not exist."""
    return sorted(path for path in folder.glob("*") if not path.name.startswith(".")) if folder.is_dir() else []
