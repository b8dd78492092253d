"""`buildfarm store`."""

from __future__ import annotations

from typing import Annotated

import typer

from builder.cli.options import JsonOption, StoreOption, examples
from builder.cli.output import print_data
from builder.log import print_line

DU_EXAMPLES = examples("buildfarm store du", "buildfarm store du --json")
PRUNE_EXAMPLES = examples("buildfarm store prune --keep-days 30 --dry-run", "buildfarm store prune --keep-days 30")
HISTORY_EXAMPLES = examples("buildfarm store history", "buildfarm store history --json")

KeepDaysOption = Annotated[
    float, typer.Option("--keep-days", metavar="N", min=0, help="Keep what was used in the last N days.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")]

app = typer.Typer(
    help="Show and free the disk space of the store; list earlier runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command(epilog=DU_EXAMPLES)
def du(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print the disk space that each folder of the store uses."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.store import usage  # noqa: PLC0415

    opened = open_store(store, run=False)
    print_line("measuring disk use; a store with many files takes a minute")
    print_data(usage(opened, as_json=as_json))


@app.command(epilog=PRUNE_EXAMPLES)
def prune(
    keep_days: KeepDaysOption,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what was not used for some days. What a running command uses is kept."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.store import pruned_text  # noqa: PLC0415
    from builder.storage import items  # noqa: PLC0415

    done = items.prune(open_store(store, run=False), keep_days, dry_run=dry_run)
    print_data(pruned_text(done, dry_run=dry_run, as_json=as_json))


@app.command(epilog=HISTORY_EXAMPLES)
def history(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the earlier runs of `build` and `smoke`. `buildfarm report RUN` shows one of them."""
    from builder.commands import store as command  # noqa: PLC0415 - see `build`
    from builder.commands.folders import open_store  # noqa: PLC0415
    from builder.storage.runs import runs  # noqa: PLC0415

    print_data(command.history(runs(open_store(store, run=False)), as_json=as_json))
