"""LibTorch's stable ABI: a library that claims it uses torch's C functions only, none newer than its floor.

`shims.yaml` says which torch first exports each C function, as `make_shims.py` measured on the wheels
themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from builder.matrix.axes import AbiClass
from builder.proof import Check, Proof
from builder.proofs.claim import Claim, judge, listed
from builder.proofs.symbols import demangle, is_driver, is_python, is_standard, is_torch_cxx
from builder.wheels.facts import Library, WheelFacts

#: How torch names the functions of its C interface.
SHIM = re.compile(r"(aoti_torch|torch|aoti)_[a-z0-9_]+")


@dataclass(frozen=True)
class Shim:
    """A C function of torch: the series that first exports it, and its library's class, `cpu` or `cuda`."""

    since: tuple[int, int]
    kind: str

    @property
    def series(self) -> str:
        """As torch is named: `2.10`."""
        return f"{self.since[0]}.{self.since[1]}"


@cache
def shims() -> dict[str, Shim]:
    """Every C function in `shims.yaml`, by name."""
    table = yaml.safe_load((Path(__file__).parent / "shims.yaml").read_text())
    return {
        name: Shim(_series(series), kind)
        for series, kinds in table["since"].items()
        for kind, names in kinds.items()
        for name in names
    }


def _series(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def torch_floor(library: Library) -> str:
    """The oldest torch series whose C functions suffice, e.g. `2.10`; empty when a library uses none."""
    used = [shims()[symbol] for symbol in library.undefined if symbol in shims()]
    return max(used, key=lambda shim: shim.since).series if used else ""


def check_stable(facts: WheelFacts, claim: Claim) -> Proof | None:
    """Each library uses only C functions that its oldest claimed torch has; None for another ABI class."""
    if claim.abi is not AbiClass.STABLE:
        return None
    own = {symbol for library in facts.libraries for symbol in library.defined}
    faults = []
    for library in facts.libraries:
        faults += _faults(library, own, claim)
    floors = {library.path: torch_floor(library) for library in facts.libraries}
    floor = max((one for one in floors.values() if one), key=_series, default="")
    return judge(
        facts,
        Check.STABLE,
        faults,
        good=f"torch >= {floor}" if floor else "uses no function of torch",
        evidence={"floor": floor, "libraries": floors},
    )


def _faults(library: Library, own: set[str], claim: Claim) -> list[str]:
    left = [
        symbol
        for symbol in library.undefined
        if not (symbol in library.bound or symbol in own or is_python(symbol) or is_standard(symbol))
    ]
    cxx = [demangle(symbol) for symbol in left if is_torch_cxx(symbol)]
    known = shims()
    newer: dict[str, list[str]] = {}
    for symbol in left:
        if symbol in known and known[symbol].since > (claim.torch.major, claim.torch.minor):
            newer.setdefault(known[symbol].series, []).append(symbol)
    # A driver's functions carry no version: they are only told from strays by the library linked for them.
    has_driver = any(is_driver(name) for name in library.needed)
    stray = [
        demangle(symbol)
        for symbol in left
        if symbol not in known and not is_torch_cxx(symbol) and not (has_driver and _is_driver_call(symbol))
    ]
    faults = []
    if cxx:
        faults.append(
            f"{library.path} uses torch's C++ ABI ({listed(cxx)}), which changes with every release: "
            "compile every source with -DTORCH_TARGET_VERSION, whose headers refuse such calls"
        )
    for series, names in sorted(newer.items(), key=lambda one: _series(one[0])):
        faults.append(
            f"{library.path} needs torch {series} for {listed(names)}, {claim.torch.series} is claimed: "
            "lower TORCH_TARGET_VERSION to the claim, or raise the claim"
        )
    if unknown := [symbol for symbol in stray if SHIM.fullmatch(symbol)]:
        faults.append(f"{library.path} uses {listed(unknown)}, which no measured torch exports")
    if other := [symbol for symbol in stray if not SHIM.fullmatch(symbol)]:
        faults.append(f"{library.path} leaves {listed(other)} undefined, which is no C function of torch")
    return faults


def _is_driver_call(symbol: str) -> bool:
    return symbol.startswith(("cu", "nv"))
