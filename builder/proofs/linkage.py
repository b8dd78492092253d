"""Every undefined symbol of a wheel, looked up where the dynamic loader of one cell would look.

That is: the library itself, all it needs in turn (DT_NEEDED), and what every process with torch in it has
opened for all, which is Python and libtorch_global_deps. torch's other libraries are loaded privately: a
library that calls libtorch_cuda without needing it fails at import, however surely torch has it loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from builder.matrix.axes import Cell
from builder.proof import Check, Proof
from builder.proofs.claim import judge, listed
from builder.proofs.providers import SymbolTable
from builder.proofs.stable import SHIM, shims
from builder.proofs.symbols import (
    STANDARD,
    demangle,
    is_driver,
    is_python,
    is_torch_cxx,
    system_provider,
)
from builder.proofs.tags import system_libraries
from builder.wheels.facts import Library, WheelFacts

_GLOBAL = "libtorch_global_deps.so"
_CUDA_CALL = re.compile(
    r"(cuda|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nccl|nvtx)[A-Z]\w*|__cuda\w+"
)
_OLD_STRING = re.compile(r"\bstd::string\b")


@dataclass
class _Scope:
    """Where the loader looks for one library's symbols, and the libraries it would not find at all."""

    defined: list[frozenset[str]] = field(default_factory=list)
    system: set[str] = field(default_factory=set)
    driver: bool = False
    missing: list[str] = field(default_factory=list)

    def has(self, symbol: str) -> bool:
        return any(symbol in names for names in self.defined)


def check_linkage(facts: WheelFacts, cell: Cell, table: SymbolTable) -> Proof:
    """Every library needed is there in this cell, and every undefined symbol is found in one of them.

    Symbols bound to a version of a system library count as found: whether the system is new enough is the
    tags' matter. Evidence: `missing` ({library: {mangled: readable}}), `absent` ({library: [soname]}).
    """
    faults: list[str] = []
    missing: dict[str, dict[str, str]] = {}
    absent: dict[str, list[str]] = {}
    found = 0
    for library in facts.libraries:
        scope = _scope(library, facts, table)
        if scope.missing:
            absent[library.path] = scope.missing
            faults += [f"{library.path} needs {name}, {_why_absent(name, cell, table)}" for name in scope.missing]
        lost = [symbol for symbol in library.undefined if not _found(symbol, library, scope)]
        found += len(library.undefined) - len(lost)
        if lost:
            missing[library.path] = {symbol: demangle(symbol) for symbol in lost}
            faults += _lost_faults(library, lost, facts, cell, table)
    return judge(
        facts,
        Check.LINKAGE,
        faults,
        cell=cell,
        good=f"{found} symbols found",
        evidence={"found": found, "missing": missing, "absent": absent},
    )


def _scope(library: Library, facts: WheelFacts, table: SymbolTable) -> _Scope:
    inside = {name: one for one in facts.libraries for name in (one.basename, one.soname) if name}
    whitelist = system_libraries(library.machine)
    scope = _Scope([frozenset(library.defined)], set(STANDARD))
    todo = [*library.needed, *([_GLOBAL] if _GLOBAL in table.providers else [])]
    seen: set[str] = set()
    while todo:
        name = todo.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in table.providers:  # torch is imported first, so its own library is the one already loaded
            scope.defined.append(table.providers[name].defined)
            todo += [one for one in table.providers[name].needed if _known(one, table, whitelist)]
        elif name in inside:
            scope.defined.append(frozenset(inside[name].defined))
            todo += inside[name].needed
        elif is_driver(name):
            scope.driver = True
        elif name in whitelist:
            scope.system.add(name)
        else:
            scope.missing.append(name)
    providers = (system_provider(name) for name in sorted(scope.system))
    scope.defined += [provider.defined for provider in providers if provider is not None]
    return scope


def _known(name: str, table: SymbolTable, whitelist: frozenset[str]) -> bool:
    """What torch's own libraries need beyond this (MPI, RDMA) is torch's affair."""
    return name in table.providers or name in whitelist or is_driver(name)


def _found(symbol: str, library: Library, scope: _Scope) -> bool:
    if scope.has(symbol) or is_python(symbol):
        return True
    if bound := library.bound.get(symbol):
        # A missing library is named once, not once for each of its symbols.
        return bound[0] in scope.system or bound[0].startswith("ld-linux") or bound[0] in scope.missing
    return scope.driver and symbol.startswith(("cu", "nv"))


def _why_absent(name: str, cell: Cell, table: SymbolTable) -> str:
    stem, _, version = name.partition(".so")
    there = sorted(other for other in table.providers if other.partition(".so")[0] == stem)
    if stem == "libcudart":
        mine = version.strip(".") or "another version"
        return (
            f"which is CUDA {mine}'s; torch {cell.torch} here has {listed(there) or 'none'}: "
            f"build it with a CUDA {cell.cuda.major} toolkit"
        )
    if there:
        return f"this cell has {listed(there)}: build it with this cell's torch and toolkit"
    if stem.startswith(("libtorch", "libc10")):
        return f"which torch {cell.torch} does not have: it was built against another torch"
    return "which this cell does not have: link it statically, or let `auditwheel repair` copy it into the wheel"


def _lost_faults(library: Library, lost: Iterable[str], facts: WheelFacts, cell: Cell, table: SymbolTable) -> list[str]:
    """One sentence for each likely cause."""
    by_cause: dict[str, list[str]] = {}
    for symbol in lost:
        by_cause.setdefault(_cause(symbol, facts, cell, table), []).append(demangle(symbol))
    return [f"{library.path}: undefined symbol {listed(names)}: {cause}" for cause, names in by_cause.items()]


def _cause(symbol: str, facts: WheelFacts, cell: Cell, table: SymbolTable) -> str:
    holders = [name for name, provider in sorted(table.providers.items()) if symbol in provider.defined]
    holders += [one.path for one in facts.libraries if symbol in one.defined]
    if holders:
        return f"{listed(holders)} has it, but this library does not link it: name it in its `libraries`"
    readable = demangle(symbol)
    if SHIM.fullmatch(symbol):
        shim = shims().get(symbol)
        since = f"torch {shim.series} is the first with it" if shim else "no torch measured has it"
        return f"{since}, this cell has {cell.torch}: lower TORCH_TARGET_VERSION, or raise the claim"
    if is_torch_cxx(symbol) and _string_abi_differs(readable, table):
        flag = f"-D_GLIBCXX_USE_CXX11_ABI={int(table.cxx11)}"
        return f"it uses the other C++ ABI of std::string: build with {flag}, as torch {cell.torch} was"
    return _other_cause(symbol, readable, facts, cell)


def _other_cause(symbol: str, readable: str, facts: WheelFacts, cell: Cell) -> str:
    if is_torch_cxx(symbol):
        return f"it was built against another torch than {cell.torch}, whose C++ functions differ"
    if _CUDA_CALL.fullmatch(symbol):
        return "it calls CUDA, but links no library that has it: build with this cell's toolkit, and link it"
    if readable.startswith(("std::", "__gnu_cxx::")):
        return "it needs a newer C++ library than this system's: build in an older image"
    return _left_out(facts)


def _string_abi_differs(readable: str, table: SymbolTable) -> bool:
    new = "__cxx11" in readable or "[abi:cxx11]" in readable
    return not new and _OLD_STRING.search(readable) is not None if table.cxx11 else new


def _left_out(facts: WheelFacts) -> str:
    ours = "no library of torch, CUDA or the system would define it: a source of its own was left out"
    if any(library.fatbin and not library.foreign for library in facts.libraries):
        return f"{ours}; look at the `sources` in setup.py"
    return (
        f"{ours}, and as the wheel holds no GPU code at all, it was the CUDA sources, most likely "
        "because setup.py asked torch.cuda.is_available() on a machine without a GPU; "
        "build with FORCE_CUDA=1, or with `assume_cuda: true` in its recipe"
    )
