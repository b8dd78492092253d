"""The C functions of torch's stable ABI, and since which release they exist.

`shims.yaml` lists which torch release first exports each C function; `tools/make_shims.py` measured it from the wheels.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.matrix.axes import Torch
from builder.matrix.compat_table import read_text_yaml

#: Names of the functions in torch's C interface.
SHIM = re.compile(r"(aoti_torch|torch|aoti)_\w+")


@dataclass(frozen=True)
class Shim:
    """A C function of torch: the series that first exports it, and the class of its library, `cpu` or `cuda`."""

    since: tuple[int, int]
    kind: str

    @property
    def series(self) -> str:
        """The series as text: `2.10`."""
        return f"{self.since[0]}.{self.since[1]}"


@cache
def shims() -> dict[str, Shim]:
    """Every C function in `shims.yaml`, by name."""
    table = read_text_yaml(Path(__file__).with_name("shims.yaml"))
    return {
        name: Shim((int(series.partition(".")[0]), int(series.partition(".")[2])), kind)
        for series, kinds in table["since"].items()
        for kind, names in kinds.items()
        for name in names
    }


def oldest_torch(symbols: Iterable[str]) -> Torch | None:
    """The oldest torch release that has every C function among these symbols; None if there is none among them."""
    used = [shims()[symbol].since for symbol in symbols if symbol in shims()]
    return Torch(*max(used), 0) if used else None
