"""The paths of an index: all wheels, those without CUDA, those of each CUDA variant, and those of each torch of it."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.publish.index.entry import Entry

#: The path with every wheel, and the path of wheels without CUDA. Each CUDA variant has a path of its name.
ALL, WITHOUT_CUDA = "simple", "cpu"
#: The end of the path of one torch, such as `cu130/torch2.11`. The normalized name of a project has no point.
_TORCH = re.compile(r"torch\d+\.\d+")


def paths_of(entry: Entry) -> tuple[str, ...]:
    """The paths that list a wheel besides `simple`; none if it may use CUDA of an unknown variant.

    The path of a torch has the wheels whose version and METADATA admit this torch. A wheel that admits every torch is
    in those of the torches that it was tested with, if it was tested.
    """
    if not entry.farm or not (entry.farm.cuda or entry.farm.cuda_unknown):
        return (WITHOUT_CUDA,)
    pairs = [(variant, series) for variant in entry.farm.cuda for series in _series(entry, variant)]
    return (*entry.farm.cuda, *(f"{variant}/torch{series}" for variant, series in pairs))


def _series(entry: Entry, variant: str) -> Collection[str]:
    tested = dict.fromkeys(cell.torch.series for cell in entry.cells if cell.cuda.variant == variant)
    requires = entry.farm.requires_torch if entry.farm else None
    if requires is None and not entry.local.series:  # an earlier version of buildfarm wrote the record
        return tested
    admitted, is_every = _admitted(entry.version.local or "", requires or (), variant)
    return tested if is_every and tested else admitted


@lru_cache(maxsize=2**12)
def _admitted(local: str, requires: tuple[str, ...], variant: str) -> tuple[tuple[str, ...], bool]:
    """The torch series that a local version and requirements admit with a CUDA; and whether they admit every torch."""
    from builder.proofs.claimed_cells import StatedTorch  # noqa: PLC0415 - takes long

    compat = Compat.load()
    stated = StatedTorch(f"0+{local}" if local else "0", requires)
    admitted, excluded = dict[str, None](), set[str]()
    for torch in compat.torches:
        for cuda in sorted(compat.torch(torch).variants):
            cells = (Cell(torch, cuda, python) for python in compat.pythons)
            if all(map(stated.why_not, cells)):
                excluded.add(torch.series)
            elif variant in (cuda.variant, f"cu{cuda.major}"):
                admitted[torch.series] = None
    return tuple(admitted), not excluded


def path_to_install(entry: Entry, variant: str = "") -> str:
    """The path in the command that installs a wheel: of its torch if it admits only one, else of its CUDA variant.

    Without a CUDA variant, it is the newest one of the wheel.
    """
    variants = [path for path in paths_of(entry) if "/" not in path]
    best = max(variants, key=lambda one: (len(one), one), default=ALL)
    if variant:
        best = next((path for path in (variant, variant[:-1]) if path in variants), ALL)
    requires = entry.farm.requires_torch if entry.farm else None
    series, is_every = _admitted(entry.version.local or "", requires or (), best)
    return f"{best}/torch{series[0]}" if len(series) == 1 and not is_every else best


def is_path(name: str) -> bool:
    """Whether this is the name of a path: `simple`, `cpu`, `cu130`, `cu130/torch2.11`."""
    top, slash, torch = name.partition("/")
    return (is_variant(top) and (not slash or is_torch(torch))) or name in {ALL, WITHOUT_CUDA}


def is_variant(name: str) -> bool:
    """Whether this is the name of a CUDA variant: `cu130`, or `cu13` for every CUDA of one major version."""
    return name.startswith("cu") and name[2:].isdigit()


def is_torch(name: str) -> bool:
    """Whether this is the folder of one torch in the path of a CUDA variant: `torch2.11`."""
    return _TORCH.fullmatch(name) is not None
