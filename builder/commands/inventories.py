"""Makes symbol inventories of torch releases: from the index, or from wheels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from builder.cli.options import CudaOption, QuietOption, StoreOptions
from builder.cli.output import print_data, print_json
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, Code, MissingToolError, UsageError
from builder.gate.amounts import size_text
from builder.log import print_line, print_warning, set_verbosity
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.proofs.inventory import Inventory, Release, Shelf, inventory_of_wheel, shelf_of
from builder.store import Store
from builder.untrusted import split_url
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import is_compatible
from builder.wheels.sources.index import Location, download_wheel, locate


@dataclass(frozen=True, kw_only=True)
class NewInventoriesOptions(StoreOptions):
    """The options of `buildfarm inventory add`."""

    torch: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TORCH",
            help="Release or series (2.11.0, 2.11, 2.11.0+cu128), torch wheel, or URL of one.",
        ),
    ] = None
    every: Annotated[
        bool,
        typer.Option("--all", help="The newest release of every torch series that buildfarm knows and the index has."),
    ] = False
    cuda: CudaOption = None
    quiet: QuietOption = False


def add(options: NewInventoriesOptions) -> None:
    """Read which symbols the libraries of torch releases define, and keep the lists in the store.

    The wheel of a release is downloaded, and deleted after its libraries were read. Nothing is executed.

    Examples:
        buildfarm inventory add 2.11 2.12
        buildfarm inventory add --all
    """
    set_verbosity(quiet=options.quiet, verbose=False)
    if not options.torch and not options.every:
        raise UsageError("name a torch release, such as 2.11, or write --all", Code.COMMAND_LINE_INVALID)
    if options.torch and options.every:
        raise UsageError("name torch releases or write --all, but not both", Code.COMMAND_LINE_INVALID)
    store = open_store(options.store)
    added = add_inventories(options.torch or (), store, every=options.every, cudas=options.cuda or ())
    _print(shelf_of(store), added, as_json=options.as_json)


def list_inventories(options: StoreOptions) -> None:
    """Print the torch releases whose symbols the store knows.

    Examples:
        buildfarm inventory list
        buildfarm inventory list --json
    """
    shelf = shelf_of(open_store(options.store))
    if not (shelf.releases or options.as_json):
        print_data("The store has no inventory. `buildfarm inventory add --all` makes them.\n")
    else:
        _print(shelf, shelf.releases, as_json=options.as_json)


COMMANDS = {"add": add, "list": list_inventories}


def add_inventories(
    what: Sequence[str], store: Store, *, every: bool = False, cudas: Sequence[str] = ()
) -> list[Release]:
    """Make the inventories that the store lacks; returns the releases that were added.

    `what` are releases, series, files or URLs. `cudas` are the CUDA versions of releases; without any, that of torch's
    wheel on the package index. With `every`, `what` is each series, and one that cannot be read is a warning. Raises
    BuildfarmError for each other one.
    """
    shelf, added = shelf_of(store), list[Release]()
    if every:  # the newest first
        what = list(dict.fromkeys(torch.series for torch in reversed(Compat.load().torches)))
    for number, text in enumerate(what, 1):
        if every:
            print_line(f"{number} of {len(what)}: torch {text}")
        try:
            for inventory in _inventories(text, cudas, shelf, store):
                shelf.add(inventory)
                added.append(inventory.release)
        except BuildfarmError as error:
            if not every:
                raise
            print_warning(f"torch {text}: {error.sentence}")
    return added


def _inventories(text: str, cudas: Sequence[str], shelf: Shelf, store: Store) -> Iterator[Inventory]:
    """Yield the inventory of a file or URL, or those of a release that the shelf lacks."""
    if not re.fullmatch(r"(?:torch==)?\d+\.\d+(?:\.\d+)?(?:\+cu\d+)?", text):
        yield _of_file(text, store)
        return
    compat, (version, _, variant) = Compat.load(), text.removeprefix("torch==").partition("+")
    torch = compat.resolve_torch(version)
    named = [variant] if variant else cudas
    for cuda in [compat.resolve_cuda(one) for one in named] or [compat.torch(torch).default]:
        why = compat.why_not_cuda(torch, cuda)
        if why and why.code != "no-toolkit":
            raise UsageError(why.reason, Code.NO_SUCH_COMBINATION)
        if any((one.torch, one.cuda) == (torch, cuda) for one in shelf.releases):
            print_line(f"the inventory of torch {torch} for CUDA {cuda} exists")
        else:
            yield _of_index(torch, cuda, store)


def _of_index(torch: Torch, cuda: Cuda, store: Store) -> Inventory:
    """The inventory of a release of the package index, or of PyTorch's index."""
    compat = Compat.load()
    index = [] if compat.is_default_variant(torch, cuda) else [TORCH_INDEX.replace("{variant}", cuda.variant)]
    python = [one for one in compat.torch(torch).pythons[torch] if not one.free_threaded][-1]
    asked = ("--only-binary=:all:", f"--python-version={python}")
    found = locate(compat.torch_requirement(torch, cuda), "wheel", *asked, index=index)
    location = next((one for one in found if is_compatible(one.name, python, any_glibc=True)), None)
    if location is None:
        raise MissingToolError(
            f"the index has no wheel for Python {python} on this machine",
            Code.PACKAGE_NOT_FOUND,
            where=f"torch {torch}",
        )
    return _of_url(location, store)


def _of_file(text: str, store: Store) -> Inventory:
    if re.match(r"https?://", text):
        return _of_url(Location(text, unquote(Path(split_url(text).path).name), ""), store)
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            "this is no torch release, file or URL; write a release like 2.11", Code.VALUE_INVALID, where=text
        )
    with WheelFile(path) as wheel:
        return inventory_of_wheel(wheel)


def _of_url(location: Location, store: Store) -> Inventory:
    """Download a wheel and read it. It is not kept: an inventory needs a thousandth of its bytes."""
    if location.url.startswith("file:"):
        return _of_file(unquote(split_url(location.url).path), store)
    print_line(f"download {location.name} and read its libraries")
    hashed = f"#sha256={location.sha256}" if location.sha256 else ""
    with (
        store.work("inventory") as folder,
        WheelFile(download_wheel(f"{location.url}{hashed}", cache=folder).path) as wheel,
    ):
        return inventory_of_wheel(wheel)


def _print(shelf: Shelf, releases: Sequence[Release], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for release in releases:
        libraries = shelf.read(release).table.libraries.values()
        rows.append(
            {
                "release": str(release),
                "file": str(shelf.path(release)),
                "bytes": shelf.path(release).stat().st_size,
                "libraries": len(libraries),
                "symbols": sum(len(one.defined) for one in libraries),
            }
        )
    if as_json:
        print_json(rows)
        return
    for row in rows:
        size, numbers = size_text(row["bytes"]), f"{row['libraries']} libraries, {row['symbols']} symbols"
        print_data(f"{row['release']:<28}  {size:>8}  {numbers}\n")
