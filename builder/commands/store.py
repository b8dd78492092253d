"""`buildfarm store`: frees disk space, and lists the runs. A prune deletes what was not used. `saving` has the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from builder.cli.options import StoreOptions
from builder.commands.folders import open_store
from builder.commands.saving import check, save
from builder.gate.amounts import counted, grouped, size_text
from builder.log import print_data
from builder.option import option
from builder.publish.runs.history import Run, runs
from builder.store import Store
from builder.wheels.build_dir import clear_abandoned

#: The folders with items that can be deleted.
_FOLDERS = (
    "builds",
    "envs",
    "inventories",
    "logs",
    "objects",
    "proofs",
    "received",
    "remote",
    "runs",
    "sources/git",
    "sources/sdists",
    "sources/wheels",
)


@dataclass(frozen=True, kw_only=True)
class PruneStoreOptions(StoreOptions):
    """The options of `buildfarm store prune`."""

    keep_days: float = option("Keep what was used in the last N days.", "N", default=..., min=0, max=36_500)
    dry_run: bool = False


def prune(options: PruneStoreOptions) -> None:
    """Delete what was not used for some days. While a command builds or checks with the store, nothing is deleted.

    Examples:
        buildfarm store prune --keep-days 30 --dry-run
        buildfarm store prune --keep-days 30
    """
    store = open_store(options.store, run=False, must_exist=True)
    deleted, in_use = prune_store(store, options.keep_days, dry_run=options.dry_run)
    lines = [f"{item.name}  {size_text(item.size)}" for item in deleted]
    if in_use:
        lines.append(f"Nothing can be deleted now: {in_use} uses the store.")
    size = size_text(sum(item.size for item in deleted))
    done = f"would be deleted, which frees {size}" if options.dry_run else f"deleted, {size} freed"
    lines.append(f"{counted(len(deleted), 'item')} {done}.")
    print_data("".join(f"{line}\n" for line in lines))


def history(options: StoreOptions) -> None:
    """List the earlier runs of `build` and `smoke`. `buildfarm report RUN` shows one of them.

    Examples:
        buildfarm store history
    """
    print_data(history_text(runs(open_store(options.store, run=False, must_exist=True))))


COMMANDS = {"prune": prune, "history": history, "save": save, "check": check}


def history_text(runs: Sequence[Run]) -> str:
    """Three lines for each run, the newest first: what came out, the command, and the folder."""
    lines = [
        f"{run.id}  {run.seconds:.0f} s  {run.extensions}: {run.results}\n  {run.command}\n  in {run.folder}\n"
        for run in runs
    ]
    return "".join(lines) or "No run is recorded in this store.\n"


@dataclass(frozen=True)
class Item:
    """Something in the store that can be deleted."""

    #: Its path in the store.
    target: str
    #: Bytes that its deletion frees.
    size: int
    #: The wheel or the archive in it, or empty.
    content: str

    @property
    def name(self) -> str:
        """The item as the text names it."""
        folder, _, name = self.target.rpartition("/")
        return f"{folder}/{name[:16]}: {self.content}" if self.content else self.target


def disk_size(path: Path) -> int:
    """The bytes that a deletion of a file or a folder frees: not those of files with a link outside."""
    links = grouped(((stat.st_dev, stat.st_ino), stat) for stat in _stats(path))
    return sum(found[0].st_blocks * 512 for found in links.values() if len(found) >= found[0].st_nlink)


def _stats(path: Path) -> Iterator[os.stat_result]:
    """The files at and below a path; what is deleted meanwhile is left out."""
    below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in below if path.is_dir() and not path.is_symlink() else [path]:
        with suppress(OSError):
            yield file.lstat()


def prune_store(store: Store, keep_days: float, *, dry_run: bool = False) -> tuple[list[Item], str]:
    """Delete what was not used for some days, the least recently used first, and the files of killed runs.

    Returns what was or would be deleted, and the process that uses the store, so that nothing was; or "".
    """
    if dry_run:
        return list(_old_items(store, keep_days)), ""
    clear_abandoned(store)
    with store.alone() as in_use:
        if in_use:
            return [], in_use
        deleted = list(_old_items(store, keep_days))
        for item in deleted:
            store.delete(item.target)
    return deleted, ""


def _old_items(store: Store, keep_days: float) -> Iterator[Item]:
    """What was not used for some days: not the lock files, and not the locked versions of packages in `envs/`."""
    begin, last_uses = datetime.now(UTC) - timedelta(days=keep_days), dict[str, datetime]()
    for folder in _FOLDERS:
        for path in _entries(store.root / folder):
            if folder != "envs" or path.is_dir():
                used = store.last_use(f"{folder}/{path.name}")
                if folder == "objects":  # sccache sets the time of each object that it finds
                    used = max([used, *(datetime.fromtimestamp(stat.st_mtime, UTC) for stat in _stats(path))])
                last_uses[f"{folder}/{path.name}"] = used
    for target, used in sorted(last_uses.items(), key=lambda item: item[1]):
        if used <= begin:
            path = store.root / target
            names = (entry.name for entry in _entries(path))
            content = next((name for name in names if name.endswith((".whl", ".tar.gz", ".zip"))), "")
            yield Item(target, disk_size(path), content)


def _entries(folder: Path) -> Sequence[Path]:
    """The entries of a folder without hidden files, sorted; none if the folder does not exist."""
    return sorted(path for path in folder.glob("*") if not path.name.startswith(".")) if folder.is_dir() else []
