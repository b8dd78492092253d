"""`buildfarm store`: shows and frees disk space, and lists the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from builder.cli.options import DryRunOption, StoreOptions
from builder.cli.output import print_data
from builder.commands.folders import open_store
from builder.gate.amounts import counted, size_text
from builder.log import print_line
from builder.publish.terminal import fits, plain_table, to_text
from builder.storage.prune import Item, Pruned, folder_sizes
from builder.storage.prune import prune as prune_store
from builder.storage.runs import Run, runs
from builder.store import Store


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
