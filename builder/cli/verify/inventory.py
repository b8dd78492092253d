"""`buildfarm inventory`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import CudaOption, JsonOption, QuietOption, StoreOption, examples
from builder.cli.output import print_data
from builder.errors import UsageError
from builder.log import set_verbosity

app = typer.Typer(
    help="Make, show, export and import symbol inventories: which symbols the libraries of a torch release define.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

WhatArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TORCH",
        help="Release or series (2.11.0, 2.11, 2.11.0+cu128), torch wheel, URL of one, or folder of an environment.",
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="The newest release of every torch series that buildfarm knows and the index has.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Archive with the inventories.")]


@app.command(
    epilog=examples(
        "buildfarm inventory add 2.11 2.12", "buildfarm inventory add --all", "buildfarm inventory add .venv"
    )
)
def add(
    torch: WhatArgument = None,
    every: AllOption = False,
    cuda: CudaOption = None,
    store: StoreOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read which symbols the libraries of torch releases define, and keep the lists in the store.

    From an index that answers range requests, only the libraries of the wheel are read. Nothing is executed.
    """
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.verify.inventories import InventoryOptions, add_inventories  # noqa: PLC0415
    from builder.proofs.inventory.shelf import shelf_of  # noqa: PLC0415
    from builder.publish.verify.inventory_text import inventories_json, inventories_text  # noqa: PLC0415

    set_verbosity(quiet=quiet, verbose=False)
    if not torch and not every:
        raise UsageError("name a torch release, such as 2.11, or write --all")
    opened = open_store(store)
    added = add_inventories(InventoryOptions(tuple(torch or ()), every, tuple(cuda or ())), opened)
    shelf = shelf_of(opened)
    print_data(inventories_json(shelf, added) if as_json else inventories_text(shelf, added))


@app.command("list", epilog=examples("buildfarm inventory list", "buildfarm inventory list --json"))
def list_(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print the torch releases whose symbols the store knows."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.proofs.inventory.shelf import shelf_of  # noqa: PLC0415
    from builder.publish.verify.inventory_text import inventories_json, inventories_text  # noqa: PLC0415

    shelf = shelf_of(open_store(store))
    print_data(
        inventories_json(shelf, shelf.releases) if as_json else inventories_text(shelf, shelf.releases, known=True)
    )


@app.command(epilog=examples("buildfarm inventory export torch-symbols.zip"))
def export(file: FileArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Write all inventories of the store to one file."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.proofs.inventory.shelf import shelf_of  # noqa: PLC0415
    from builder.publish.verify.inventory_text import inventories_json, inventories_text  # noqa: PLC0415

    shelf = shelf_of(open_store(store))
    if not shelf.releases:
        raise UsageError("the store has no inventory", hints=["`buildfarm inventory add --all` makes them"])
    shelf.export(file, shelf.releases)
    print_data(inventories_json(shelf, shelf.releases) if as_json else inventories_text(shelf, shelf.releases))


@app.command("import", epilog=examples("buildfarm inventory import torch-symbols.zip"))
def import_(file: FileArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Add the inventories of a file that `export` wrote. Each is compared with its sha256."""
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.proofs.inventory.shelf import shelf_of  # noqa: PLC0415
    from builder.publish.verify.inventory_text import inventories_json, inventories_text  # noqa: PLC0415

    shelf = shelf_of(open_store(store))
    taken = shelf.take(file)
    print_data(inventories_json(shelf, taken) if as_json else inventories_text(shelf, taken))
