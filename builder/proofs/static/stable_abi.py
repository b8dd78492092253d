"""Check LibTorch's stable ABI and Python's: which functions a library uses, and since which release they exist.

`shims.yaml` lists which torch release first exports each C function; `tools/make_shims.py` measured it from the wheels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from packaging.tags import parse_tag

from builder.gate.system.demangle import demangle
from builder.matrix.axes import AbiClass
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, join_names, make_proof
from builder.proofs.static.system_symbols import CUDA_CALL, is_python, is_standard, is_torch_cxx
from builder.wheelfile.driver import is_driver_library
from builder.wheelfile.facts import Library, WheelFacts

if TYPE_CHECKING:
    from abi3info.models import PyVersion  # type: ignore[import-untyped]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Names of the functions in torch's C interface.
SHIM = re.compile(r"(aoti_torch|torch|aoti)_\w+")
#: Symbols of the C++ standard library. The checks `tags` and `linkage` decide whether they are there.
#: Libraries of torch, of glibc and GCC, and of CUDA as far as each of their symbols has a version.
_EXPLAINED_LIBRARY = re.compile(
    r"(?:lib(?:torch|c10|shm)(?:_\w+)?|lib(?:c|m|dl|pthread|rt|util|gcc_s|stdc\+\+|gomp)|ld-linux[\w-]*"
    r"|libcu(?:dart|blas|blasLt|fft|rand|solver|sparse))\.so(?:\.\d+)*"
)
_CUDA_LIBRARY = re.compile(r"lib(?:cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nv|nccl)")
_STANDARD_CXX = re.compile(r"_Z(?:T[VIST]|GV)?(?:N[rVK]*[RO]?)?S[tabisod]")


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
    table = yaml.load((Path(__file__).parent / "shims.yaml").read_text(), Loader=_LOADER)  # noqa: S506 (a safe loader)
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
    """The oldest torch series that has every C function a library uses, e.g. `2.10`; empty when it uses none."""
    used = [shims()[symbol] for symbol in library.undefined if symbol in shims()]
    return max(used, key=lambda shim: shim.since).series if used else ""


def check_stable(facts: WheelFacts, claim: WheelClaim) -> Proof | None:
    """Every library uses only C functions of the oldest claimed torch; None for other ABI classes."""
    if claim.abi is not AbiClass.STABLE:
        return None
    own = {symbol for library in facts.libraries for symbol in library.defined}
    files = {name for library in facts.libraries for name in (library.basename, library.soname)}
    errors, remarks = [], []
    for library in facts.libraries:
        errors += _errors(library, own, files, claim)
        calls = [one for one in library.undefined if CUDA_CALL.fullmatch(one) and one not in {*own, *library.bound}]
        if calls and not any(map(_CUDA_LIBRARY.match, library.needed)):
            remarks.append(
                f"{library.path} calls {join_names(calls)} and links no library of CUDA: `linkage` says whether those"
                " of torch bring the functions"
            )
    floors = {library.path: torch_floor(library) for library in facts.libraries}
    floor = max((one for one in floors.values() if one), key=_series, default="")
    return make_proof(
        facts,
        Check.STABLE,
        errors,
        good=f"torch >= {floor}" if floor else "uses no function of torch",
        evidence={"floor": floor, "libraries": floors},
        remarks=remarks,
    )


def _errors(library: Library, own: set[str], files: set[str], claim: WheelClaim) -> list[str]:
    """What is wrong with a library; `own` are the symbols, `files` the names of the libraries of the wheel."""
    undefined = [
        symbol
        for symbol in library.undefined
        if not (symbol in library.bound or symbol in own or is_python(symbol) or is_standard(symbol))
        and not CUDA_CALL.fullmatch(symbol)  # the check of the linkage looks for them
        and not _STANDARD_CXX.match(symbol)
    ]
    cxx = [demangle(symbol) for symbol in undefined if is_torch_cxx(symbol)]
    known = shims()
    newer: dict[str, list[str]] = {}
    for symbol in undefined:
        if symbol in known and known[symbol].since > (claim.torch.major, claim.torch.minor):
            newer.setdefault(known[symbol].series, []).append(symbol)
    # Functions of the driver have no symbol version: only a linked driver library shows that they are the driver's.
    has_driver = any(is_driver_library(name) for name in library.needed)
    # So have functions of zlib or NCCL, for example. The check of the linkage looks for them in the libraries.
    has_other = any(
        not _EXPLAINED_LIBRARY.fullmatch(name) and name not in files and not is_driver_library(name)
        for name in library.needed
    )
    unexplained = [
        demangle(symbol)
        for symbol in undefined
        if symbol not in known
        and not is_torch_cxx(symbol)
        and not (has_driver and symbol.startswith(("cu", "nv")))
        and not (has_other and not symbol.startswith("_Z") and not SHIM.fullmatch(symbol))
    ]
    errors = []
    if cxx:
        errors.append(
            f"{library.path} uses torch's C++ ABI ({join_names(cxx)}), which changes with every release: compile every "
            "source with -DTORCH_TARGET_VERSION; the headers then reject such calls"
        )
    for series, names in sorted(newer.items(), key=lambda one: _series(one[0])):
        errors.append(
            f"{library.path} needs torch {series} for {join_names(names)}, but a wheel of the class `stable` "
            f"must work with torch {claim.torch.series}: lower TORCH_TARGET_VERSION, or set `abi` in extension.yaml to "
            "`abi3` or `cpython`"
        )
    if unknown := [symbol for symbol in unexplained if SHIM.fullmatch(symbol)]:
        errors.append(
            f"{library.path} uses {join_names(unknown)}, which no torch release in buildfarm's table shims.yaml exports"
        )
    if other := [symbol for symbol in unexplained if not SHIM.fullmatch(symbol)]:
        errors.append(f"{library.path} leaves {join_names(other)} undefined; torch has no such C function")
    return errors


# Check an abi3 tag against the Python functions used, with abi3audit's table of the stable ABI (abi3info).


def check_abi3(facts: WheelFacts, claim: WheelClaim) -> Proof | None:
    """Every Python function used is in the stable ABI of the oldest Python in the tags.

    None when neither the tag nor the claim is abi3. A wheel that is claimed for every Python but tagged for one fails,
    unless it calls no Python function.
    """
    tags = [tag for line in facts.tags for tag in parse_tag(line)]
    oldest = [_python(tag.interpreter) for tag in tags if tag.abi == "abi3"]
    used = {library.path: [s for s in library.undefined if is_python(s)] for library in facts.libraries}
    errors = []
    if not oldest:
        if claim.abi is AbiClass.CPYTHON:
            return None
        if any(used.values()):
            errors.append(
                f"the recipe claims one binary for every Python, but the wheel is tagged {join_names(facts.tags)}: "
                'build with py_limited_api=True, and set py_limited_api="cp310" for bdist_wheel'
            )
        return make_proof(facts, Check.ABI3, errors, good="calls no Python function")
    floor = min(oldest)
    evidence = {}
    for path, symbols in used.items():
        added = {symbol: _added(symbol) for symbol in symbols}
        private = sorted(symbol for symbol, version in added.items() if version is None)
        newer = sorted(f"{symbol} ({version})" for symbol, version in added.items() if version and version > floor)
        if private:
            errors.append(
                f"{path} uses {join_names(private)}, which Python's stable ABI does not have: define Py_LIMITED_API"
            )
        if newer:
            errors.append(f"{path} uses {join_names(newer)}, which Python {floor} of the wheel's tag does not have")
        evidence[path] = {"private": private, "newer": newer}
    return make_proof(facts, Check.ABI3, errors, good=f"Python >= {floor}", evidence={"libraries": evidence})


def _python(interpreter: str) -> PyVersion:
    """The Python of a tag, such as `cp310`."""
    from abi3info.models import PyVersion  # noqa: PLC0415 - loads slowly; few wheels are abi3

    return PyVersion.parse_python_tag(interpreter)


def _added(symbol: str) -> PyVersion | None:
    """The Python release that added the symbol to the stable ABI, or None."""
    from abi3info import DATAS, FUNCTIONS  # type: ignore[import-untyped]  # noqa: PLC0415
    from abi3info.models import Symbol  # noqa: PLC0415

    entry = FUNCTIONS.get(Symbol(symbol)) or DATAS.get(Symbol(symbol))
    return entry.added if entry is not None else None
