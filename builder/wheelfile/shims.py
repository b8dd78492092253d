"""The C functions of torch's stable ABI, and since which release they exist.

`shims.yaml` lists which torch release first exports each C function; `tools/make_shims.py` measured it from the wheels.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from builder.matrix.axes import Torch
from builder.matrix.compat_table import read_text_yaml

#: Names of the functions in torch's C interface.
SHIM = re.compile(r"(aoti_torch|torch|aoti)_\w+")


@cache
def shims() -> dict[str, Torch]:
    """Every C function in `shims.yaml`, with the first release of the series that first exports it."""
    table = read_text_yaml(Path(__file__).with_name("shims.yaml"))
    return {
        name: Torch.parse(f"{series}.0")
        for series, kinds in table["since"].items()
        for names in kinds.values()
        for name in names
    }


def oldest_torch(symbols: Iterable[str]) -> Torch | None:
    """The oldest torch release that has every C function among these symbols; None if there is none among them."""
    return max((shims()[symbol] for symbol in symbols if symbol in shims()), default=None)
