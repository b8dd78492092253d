"""`buildfarm store`: shows and frees disk space, and lists the runs. A prune deletes what was not used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from builder.cli.options import DryRunOption, StoreOptions
from builder.cli.output import print_data
from builder.commands.folders import open_store
from builder.gate.amounts import counted, size_text
from builder.log import print_line
from builder.publish.runs.history import Run, runs
from builder.publish.terminal import fits, plain_table, to_text
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


@dataclass(frozen=True, kw_only=True)
class PruneStoreOptions(StoreOptions):
    """The options of `buildfarm store prune`."""

    keep_days: Annotated[
        float,
        typer.Option("--keep-days", metavar="N", min=0, max=36_500, help="Keep what was used in the last N days."),
    ]
    dry_run: DryRunOption = False


def du(options: StoreOptions) -> None:
    """Print the disk space that each folder of the store uses.

    Examples:
        buildfarm store du
        buildfarm store du --json
    """
    store = open_store(options.store, run=False, must_exist=True)
    print_line("measuring disk use; a store with many files takes a minute")
    print_data(usage(store, as_json=options.as_json))


def prune(options: PruneStoreOptions) -> None:
    """Delete what was not used for some days. What a running command uses is kept.

    Examples:
        buildfarm store prune --keep-days 30 --dry-run
        buildfarm store prune --keep-days 30
    """
    store = open_store(options.store, run=False, must_exist=True)
    done = prune_store(store, options.keep_days, dry_run=options.dry_run)
    print_data(pruned_text(done, dry_run=options.dry_run, as_json=options.as_json))


def history(options: StoreOptions) -> None:
    """List the earlier runs of `build` and `smoke`. `buildfarm report RUN` shows one of them.

    Examples:
        buildfarm store history
        buildfarm store history --json
    """
    store = open_store(options.store, run=False, must_exist=True)
    print_data(history_text(runs(store), as_json=options.as_json))


COMMANDS = {"du": du, "prune": prune, "history": history}


def usage(store: Store, *, as_json: bool) -> str:
    """The size of each folder of the store, as a table or as JSON."""
    sizes = folder_sizes(store)
    total = sum(size.freed for size in sizes.values())
    if as_json:
        folders = {name: {"size": size.freed, "shared": size.shared} for name, size in sizes.items()}
        return json.dumps({"store": str(store.root), "size": total, "folders": folders}, indent=1) + "\n"
    if not sizes:
        return f"store: {store.root}, empty\n"
    table = plain_table("folder", "size", "shared", right=("size", "shared"))
    for name, size in sizes.items():
        table.add_row(name, size_text(size.freed), size_text(size.shared) if size.shared else "")
    lines: list[Table | str] = [f"store: {escape(str(store.root))}", "", table, ""]
    if any(size.shared for size in sizes.values()):
        lines.append("shared: files that are also in uv's cache. Deleting the store does not free them.")
    return to_text(*lines, f"Deleting the whole store frees {size_text(total)}.")


def pruned_text(pruned: Pruned, *, dry_run: bool, as_json: bool) -> str:
    """Each deleted item, and how much space that frees."""
    freed = sum(item.size for item in pruned.deleted)
    if as_json:
        data = {
            "dry_run": dry_run,
            "freed": freed,
            "deleted": [_item_json(item) for item in pruned.deleted],
            "in_use": [_item_json(item) for item in pruned.in_use],
        }
        return json.dumps(data, indent=1) + "\n"
    lines = [f"{_name(item)}  {size_text(item.size)}" for item in pruned.deleted]
    lines += [f"kept, because it is in use: {_name(item)}" for item in pruned.in_use]
    count, size = counted(len(pruned.deleted), "item"), size_text(freed)
    lines.append(f"{count} would be deleted, which frees {size}." if dry_run else f"{count} deleted, {size} freed.")
    return "".join(f"{line}\n" for line in lines)


def _name(item: Item) -> str:
    folder, _, name = item.target.rpartition("/")
    return f"{folder}/{name[:16]}: {item.content}" if item.content else item.target


def _item_json(item: Item) -> dict[str, object]:
    used = item.used.isoformat(timespec="seconds")
    return {"target": item.target, "content": item.content, "size": item.size, "used": used}


def history_text(runs: Sequence[Run], *, as_json: bool) -> str:
    """One line for each run, the newest first; as JSON, without reports and timelines."""
    if as_json:
        large = ("report", "timeline")
        data = [{k: v for k, v in run.to_json().items() if k not in large} | {"builds": run.counts()} for run in runs]
        return json.dumps(data, indent=1) + "\n"
    if not runs:
        return "No run is recorded in this store.\n"
    table = plain_table("run", "time", "result", "extensions", "folder", "command")
    rows = []
    for run in runs:
        result = f"interrupted: {run.results}" if run.interrupted else run.results
        rows.append((run.id, f"{run.seconds:.0f} s", result, run.extensions, run.folder, run.command))
    for row in rows:
        table.add_row(*map(escape, row))
    if fits(table):
        return to_text(table)
    lines = (f"{run}  {time}  {of}: {result}\n  {command}\n  in {at}" for run, time, result, of, at, command in rows)
    return to_text(*map(escape, lines))


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


def prune_store(store: Store, keep_days: float, *, dry_run: bool = False) -> Pruned:
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
