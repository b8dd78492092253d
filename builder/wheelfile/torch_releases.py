"""The releases of torch that a wheel works with, by its requirements and by the C functions that it calls.

`shims.yaml` lists which torch release first exports each C function of torch's stable ABI; `tools/make_shims.py`
measured it from the wheels.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from builder.matrix.axes import Torch
from builder.matrix.compat_table import read_text_yaml

#: Releases that two ranges of torch are compared on: existing ones and those to be expected.
TORCHES = tuple(Version(f"{major}.{minor}.{patch}") for major in (1, 2, 3) for minor in range(41) for patch in range(4))
#: Names of the functions in torch's C interface.
SHIM = re.compile(r"(aoti_torch|torch|aoti)_\w+")


def admitted(specifiers: Iterable[Specifier]) -> frozenset[Version]:
    """The releases of TORCHES that all specifiers admit. Raises ValueError for a number that is too long."""
    return frozenset(SpecifierSet(",".join(map(str, specifiers))).filter(TORCHES))


def narrowed(window: str, lines: Iterable[str], built_with: str = "") -> Requirement:
    """A requirement of torch, such as `torch==2.11.*`, with what other requirements of torch exclude in addition.

    The lines count if together they are narrower: if they admit a release of the window, and the release that the wheel
    was built with. Lines that cannot be read, have a marker, or name a URL do not count. Needless specifiers are left
    out, so `torch==2.11.*` and `torch==2.11.0` make `torch==2.11.0`.
    """
    result = Requirement(window)
    theirs = sorted(specifier for line in lines for specifier in _specifiers(line))
    clauses = [*sorted(result.specifier, key=str), *map(Specifier, theirs)]
    try:
        both, all_of_it = admitted(clauses), admitted(result.specifier)
    except ValueError:
        return result
    if not both or both == all_of_it or (built_with and Version(built_with) not in both):
        return result
    for clause in list(clauses):
        rest = [one for one in clauses if one is not clause]
        if admitted(rest) == both:
            clauses = rest
    result.specifier = SpecifierSet(",".join(map(str, clauses)))
    return result


def _specifiers(line: str) -> list[str]:
    try:
        one = Requirement(line)
    except InvalidRequirement:
        return []
    return [] if one.marker or one.url else list(map(str, one.specifier))


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
