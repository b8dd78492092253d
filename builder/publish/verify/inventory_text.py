"""What the commands of symbol inventories print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from builder.gate.system.sizes import size_text
from builder.proofs.inventory.inventory import Release
from builder.proofs.inventory.shelf import Shelf


def inventories_text(shelf: Shelf, releases: Sequence[Release], *, known: bool = False) -> str:
    """A line for each release: its name, the size of its inventory, and the number of libraries and symbols."""
    if not releases:
        return "The store has no inventory. `buildfarm inventory add --all` makes them.\n" if known else ""
    return "".join(
        f"{row['release']:<28}  {size_text(row['bytes']):>8}  {row['libraries']} libraries, {row['symbols']} symbols\n"
        for row in _rows(shelf, releases)
    )


def inventories_json(shelf: Shelf, releases: Sequence[Release]) -> str:
    """The same as data, with the file of each inventory."""
    return json.dumps(_rows(shelf, releases), indent=1) + "\n"


def _rows(shelf: Shelf, releases: Sequence[Release]) -> list[dict[str, Any]]:
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
    return rows
