"""`buildfarm store`."""

from __future__ import annotations

from typing import Annotated

import typer

from builder.cli.options import JsonOption, StoreOption, examples
from builder.cli.output import print_data
from builder.errors import UsageError
from builder.log import print_line
from builder.matrix.models.fields import parse_size

DU_EXAMPLES = examples("buildfarm store du", "buildfarm store du --json")
PRUNE_EXAMPLES = examples(
    "buildfarm store prune --keep-days 30 --dry-run",
    "buildfarm store prune --keep-newest 2 --max-size 20GiB",
    "buildfarm store prune --max-size 50GB --engine",
)
HISTORY_EXAMPLES = examples("buildfarm store history", "buildfarm store history 20261122 --json")

KeepDaysOption = Annotated[
    float | None, typer.Option("--keep-days", metavar="N", min=0, help="Keep what was used in the last N days.")
]
KeepNewestOption = Annotated[
    int | None,
    typer.Option(
        "--keep-newest",
        metavar="N",
        min=0,
        help="Keep the N newest builds of each extension, and the N newest items of every other kind, such as"
        " environments or logs.",
    ),
]
MaxSizeOption = Annotated[
    str | None,
    typer.Option(
        "--max-size",
        metavar="SIZE",
        help="Stop deleting when the store has at most this size: 500MiB, 20GiB, 20GB. With --engine, the size includes"
        " images and volumes. What --keep-days and --keep-newest keep is not deleted, even above this size.",
    ),
]
EngineOption = Annotated[
    bool,
    typer.Option(
        "--engine",
        help="Also delete images and volumes that buildfarm made in the container engine. All stores share them.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")]
RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="The id of a run, or the first characters of the id. Default: list all runs."),
]

app = typer.Typer(
    help="Show and free the disk space of the store; show earlier runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command(epilog=DU_EXAMPLES)
def du(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print the disk space that each kind of item uses: in the store, and buildfarm's images and volumes."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.store.disk_use import disk_use  # noqa: PLC0415
    from builder.publish.store.usage_text import usage_json, usage_text  # noqa: PLC0415

    opened = open_store(store, run=False)
    print_line("measuring disk use; a store with many files takes a minute")
    use = disk_use(opened)
    print_data((usage_json if as_json else usage_text)(opened.root, use.items, use.others, use.notes))


@app.command(epilog=PRUNE_EXAMPLES)
def prune(
    keep_days: KeepDaysOption = None,
    keep_newest: KeepNewestOption = None,
    max_size: MaxSizeOption = None,
    engine: EngineOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete items of the store, the least recently used first. An item that a running command uses is kept.

    --keep-days and --keep-newest name what to keep. Without --max-size, all other items are deleted.
    """
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.store.prune import prune_store  # noqa: PLC0415
    from builder.publish.store.usage_text import prune_json, prune_text  # noqa: PLC0415
    from builder.storage.item import Limits  # noqa: PLC0415

    if keep_days is None and keep_newest is None and max_size is None:
        raise UsageError("no limit is given; pass --keep-days, --keep-newest or --max-size", where="store prune")
    limits = Limits(keep_days, keep_newest, _max_size(max_size))
    done = prune_store(open_store(store, run=False), limits, engine=engine, dry_run=dry_run)
    print_data((prune_json if as_json else prune_text)(done.deleted, done.in_use, dry_run=dry_run))


@app.command(epilog=HISTORY_EXAMPLES)
def history(run: RunArgument = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print the earlier runs of `build` and `smoke`, or one of them with its report."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.publish.store import history_text as text  # noqa: PLC0415
    from builder.storage.runs import find_run, runs  # noqa: PLC0415

    found = runs(open_store(store, run=False))
    if run is None:
        print_data((text.history_json if as_json else text.history_text)(found))
    else:
        print_data((text.run_json if as_json else text.run_text)(find_run(found, run)))


def _max_size(text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except UsageError as error:
        raise UsageError(error.sentence, where="--max-size") from None
