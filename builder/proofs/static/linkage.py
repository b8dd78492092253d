"""Check that every undefined symbol of a wheel is defined where the dynamic loader of a cell searches.

The loader searches the library itself, its dependencies (DT_NEEDED, recursively), and the global scope: Python and
libtorch_global_deps. torch loads its other libraries with local scope. A library that calls libtorch_cuda without
linking it therefore fails at import, although torch has loaded libtorch_cuda.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from auditwheel.lddtree import load_ld_paths
from auditwheel.libc import Libc

from builder.gate.amounts import grouped, join_names, subject
from builder.gate.system.process_end import demangle
from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict
from builder.proofs.static.claim import WheelClaim, forgotten, make_proof, why_no_cuda
from builder.proofs.static.symbol_table import ProvidedLibrary, SymbolTable
from builder.proofs.static.tags import system_libraries
from builder.proofs.static.variants import variants
from builder.records import CudaSources
from builder.wheelfile.compatibility import SHIM, is_driver_library, shims
from builder.wheelfile.elf import read_elf
from builder.wheelfile.facts import Library, WheelFacts

_GLOBAL = "libtorch_global_deps.so"
#: Functions of NVIDIA's packages whose names do not tell the library.
_NVIDIA_CALL = re.compile(r"nv[a-zA-Z]|nccl|cupti|cuFile|__nv")
#: Libraries that are not named `lib` and the prefix of their functions.
_CUDA_LIBRARIES = {"cuda": "libcudart", "nvtx": "libnvToolsExt"}
#: Functions of the driver, such as cuCtxCreate_v2.
_DRIVER_CALL = re.compile(r"cu[A-Z]\w*")
#: Libraries of torch and CUDA.
TORCH_OR_CUDA = re.compile(
    r"lib(?:torch|c10|shm|cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink|nvToolsExt|nccl)"
)
#: From how many files that were never compiled on they are not listed.
_MOST_FORGOTTEN = 5
_OLD_STRING = re.compile(r"\bstd::string\b")


@dataclass
class _Scope:
    """Where the loader searches for one library's symbols, and the needed libraries that do not exist."""

    #: What the libraries of torch, of its packages and of the wheel define.
    defined: list[Collection[str]] = field(default_factory=list)
    system: set[str] = field(default_factory=set)
    driver: bool = False
    unread: set[str] = field(default_factory=set)  # libraries of NVIDIA's packages whose names alone are known
    missing: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)  # libraries that count as existing; their symbols are unknown


def check_linkage(
    facts: WheelFacts,
    cell: Cell,
    table: SymbolTable,
    cuda_sources: CudaSources | None = None,
    *,
    torch_only: bool = False,
) -> Proof:
    """Every needed library exists in this cell, and one of them defines every undefined symbol.

    Symbols bound to a version of a system library count as found: the tags check decides whether the system is new
    enough. `cuda_sources` names source files that the build may have left out. With `torch_only`, a needed library that
    is not of torch or CUDA counts as existing: the tags check decides about it. Evidence: `missing` ({library:
    {mangled: readable}}), `absent` ({library: [soname]}).
    """
    undefined: list[tuple[tuple[str, tuple[str, ...]], str]] = []
    missing: dict[str, dict[str, str]] = {}
    absent: dict[str, list[str]] = {}
    found = 0
    for library in facts.libraries:
        scope = _scope(library, facts, table)
        if torch_only:
            scope.elsewhere = [name for name in scope.missing if not TORCH_OR_CUDA.match(name)]
            scope.missing = [name for name in scope.missing if TORCH_OR_CUDA.match(name)]
        if scope.missing:
            absent[library.path] = scope.missing
        lost = _lost(library, scope)
        found += len(library.undefined) - len(lost)
        if lost:
            missing[library.path] = names = {symbol: demangle(symbol) for symbol in lost}
            by_cause = grouped((_cause(one, facts, cell, table, cuda_sources), names[one]) for one in lost)
            undefined += [((why, tuple(these)), library.path) for why, these in by_cause.items()]
    users = grouped((name, path) for path, names in absent.items() for name in names)
    errors = [f"{subject(paths, 'need')} {name}, {_why_absent(name, cell, table)}" for name, paths in users.items()]
    errors += [
        f"{join_names(paths)}: undefined symbol {join_names(these)}: {why}"
        for (why, these), paths in grouped(undefined).items()
    ]
    evidence = {"missing": missing, "absent": absent}
    return make_proof(facts, Check.LINKAGE, errors, cell=cell, good=f"{found} symbols found", evidence=evidence)


def check_linkage_in(facts: WheelFacts, claim: WheelClaim, cell: Cell, table: SymbolTable) -> Proof:
    """`check_linkage` of the libraries that a process of this cell loads.

    Of the variants of a wheel that others built, which buildfarm knows by their names only, one must link.
    """
    if claim.foreign:
        return link_one(variants(facts), cell, table)
    return check_linkage(facts, cell, table, claim.cuda_sources)


def link_one(builds: Sequence[WheelFacts], cell: Cell, table: SymbolTable) -> Proof:
    """The check of the newest of several builds that links; if none does, of the one with the fewest faults."""
    found: list[Proof] = []
    for one in reversed(builds):
        found.append(check_linkage(one, cell, table, torch_only=True))
        if found[-1].verdict is Verdict.PASSED:
            return found[-1]
    return min(found, key=lambda proof: sum(len(names) for names in proof.evidence["missing"].values()))


def _scope(library: Library, facts: WheelFacts, table: SymbolTable) -> _Scope:
    inside = {name: one for one in facts.libraries for name in (one.basename, one.soname) if name}
    whitelist = system_libraries(library.machine)
    scope = _Scope([library.defined], system=set(STANDARD))
    todo = [*library.needed, *([_GLOBAL] if _GLOBAL in table.libraries else [])]
    visited: set[str] = set()
    while todo:
        name = todo.pop(0)
        if name in visited:
            continue
        visited.add(name)
        if name in table.libraries:  # torch is imported first, so the loader has this one already
            if not table.libraries[name].read:
                scope.unread.add(name)
            scope.defined.append(table.libraries[name].defined)
            # Other dependencies of torch's libraries (MPI, RDMA) are torch's own concern.
            todo += [
                one
                for one in table.libraries[name].needed
                if one in table.libraries or one in whitelist or is_driver_library(one)
            ]
        elif name in inside:
            scope.defined.append(inside[name].defined)
            todo += inside[name].needed
        elif is_driver_library(name):
            scope.driver = True
        elif name in whitelist:
            scope.system.add(name)
        else:
            scope.missing.append(name)
    return scope


def _lost(library: Library, scope: _Scope) -> list[str]:
    """The undefined symbols that nothing defines."""
    left = set(library.undefined).difference(*scope.defined)
    # A missing library is one error, not one for each of its symbols.
    there = {*scope.system, *scope.missing, *scope.elsewhere}
    left -= {one for one, (name, _) in library.bound.items() if name in there or name.startswith("ld-linux")}
    left = {symbol for symbol in left if not _may_be_defined(symbol, library, scope)}
    for name in sorted(scope.system) if left else ():
        if found := system_library(name):
            left -= found.defined
    return [symbol for symbol in library.undefined if symbol in left]


def _may_be_defined(symbol: str, library: Library, scope: _Scope) -> bool:
    """Whether Python or a library whose symbols are not known defines a symbol, by its name."""
    call = CUDA_CALL.fullmatch(symbol)
    if is_python(symbol) or (not call and scope.unread and _NVIDIA_CALL.match(symbol)):
        return True
    if call and any(name.startswith(_library_of(call[1])) for name in scope.unread):
        return True
    if symbol in library.bound:
        return False
    if scope.elsewhere and not (is_torch_cxx(symbol) or SHIM.fullmatch(symbol) or call):
        return True
    return scope.driver and symbol.startswith(("cu", "nv"))


def _library_of(prefix: str | None) -> str:
    """The library whose functions have this prefix; None: `__cuda`."""
    return _CUDA_LIBRARIES.get(prefix or "cuda", f"lib{prefix}")


def _why_absent(name: str, cell: Cell, table: SymbolTable) -> str:
    stem, _, version = name.partition(".so")
    provided = sorted(other for other in table.libraries if other.partition(".so")[0] == stem)
    if stem == "libcudart":
        found = version.strip(".") or "(unknown version)"
        same = found.partition(".")[0] == str(cell.cuda.major)
        cure = "link it statically (`nvcc -cudart static`)"
        return (
            f"the runtime of CUDA {found}; torch {cell.torch} in this cell provides {join_names(provided) or 'none'}: "
            f"{cure if same else f'build the wheel with a CUDA {cell.cuda.major} toolkit'}"
        )
    if provided:
        return f"but this cell provides {join_names(provided)}: build the wheel with this cell's torch and toolkit"
    if stem.startswith(("libtorch", "libc10")):
        return f"which torch {cell.torch} does not provide: the wheel was built against a different torch release"
    # torch 2.15.0 is the first that does not require nvidia-curand (METADATA of 2.14.1 and 2.15.0).
    if package := re.match(r"lib(curand|nvjpeg|npp)\w*\.so", name):
        cuda = cell.cuda.major
        project, folder = f"nvidia-{package[1]}-cu{cuda}", package[1]
        if cuda > 12:  # since CUDA 13, one folder for all packages
            project, folder = f"nvidia-{package[1]}", f"cu{cuda}"
        return (
            f"which torch {cell.torch} does not bring: link it statically, or add `{project}` to `requires` and the run"
            f" path `$ORIGIN/../nvidia/{folder}/lib` to the link options"
        )
    return "which this cell does not provide: link it statically, or let `auditwheel repair` copy it into the wheel"


def _cause(symbol: str, facts: WheelFacts, cell: Cell, table: SymbolTable, sources: CudaSources | None) -> str:
    holders = [name for name, library in sorted(table.libraries.items()) if symbol in library.defined]
    holders += [one.path for one in facts.libraries if symbol in one.defined]
    if holders:
        names = join_names(holders)
        return (
            f"{names} defines the symbol, but this library is not linked against {names}: add {names} to "
            "`libraries` in setup.py"
        )
    readable = demangle(symbol)
    if SHIM.fullmatch(symbol):
        shim = shims().get(symbol)
        if shim is None:
            return (
                "no torch release in buildfarm's table shims.yaml has this function: correct its name, or lower "
                "TORCH_TARGET_VERSION if the function is newer than the table"
            )
        return (
            f"torch {shim.series} added this function, but this cell has torch {cell.torch}: lower "
            "TORCH_TARGET_VERSION, or set a different class for this torch under `abi` in extension.yaml"
        )
    new_string = "__cxx11" in readable or "[abi:cxx11]" in readable
    other_string = not new_string and _OLD_STRING.search(readable) if table.cxx11 else new_string
    if is_torch_cxx(symbol) and other_string:
        # PyTorch's announcement of 2.6: its wheels for CUDA 12.6 were the first with the new ABI.
        others = f", or use torch 2.6 for CUDA {'11.8 or 12.4' if table.cxx11 else '12.6'}"
        return (
            f"the library uses a different C++ ABI of std::string than torch {cell.torch}: build with"
            f" -D_GLIBCXX_USE_CXX11_ABI={int(table.cxx11)}{others if cell.torch.series == '2.6' else ''}"
        )
    if is_torch_cxx(symbol):
        return (
            f"the library needs a C++ symbol that torch {cell.torch} does not have; "
            "the library was built against a different torch"
        )
    if symbol.startswith("__cudaRegisterLinkedBinary"):
        return "the build left out the device link of its relocatable code: pass `dlink=True` to CUDAExtension"
    if call := CUDA_CALL.fullmatch(symbol):
        name = _library_of(call[1])
        return f"no linked library defines this function of {name}: link {name} for CUDA {cell.cuda}"
    if _DRIVER_CALL.fullmatch(symbol):
        return "no linked library defines this function of the driver: link libcuda (-lcuda)"
    if readable.startswith(("std::", "__gnu_cxx::")):
        return "the library needs a newer libstdc++ than this system has: build in an older image"
    return _missing_source(facts, sources)


def _missing_source(facts: WheelFacts, sources: CudaSources | None) -> str:
    nowhere = "no library of torch, CUDA or the system defines the symbol"
    if any(library.fatbin and not library.foreign for library in facts.libraries):
        # A source tree with examples has many files that the extension does not need.
        few = sources is not None and len(sources.never_compiled) <= _MOST_FORGOTTEN
        cure = (forgotten(sources) if few else "") or "check `sources` in setup.py"
        return f"{nowhere}: the build left out a source file; {cure}"
    return f"{nowhere}, and the wheel contains no GPU code: the build left out the CUDA sources; {why_no_cuda(sources)}"


#: Libraries that every C++ extension links, and that every CPython has loaded.
STANDARD = (
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libstdc++.so.6",
    "libgcc_s.so.1",
)
#: Functions of CUDA's libraries; the group is the prefix of the library.
CUDA_CALL = re.compile(
    r"(cuda|cublasLt|cublas|cudnn|cufft|curand|cusolverMg|cusolver|cusparse|nvrtc|nccl|nvtx)[A-Z]\w*|__cuda\w+"
)


@cache
def system_library(name: str) -> ProvidedLibrary | None:
    """A library of this machine's operating system, or None when there is none of that name."""
    for folder in load_ld_paths(Libc.GLIBC)["conf"]:
        file = Path(folder) / name
        if file.is_file() and (elf := read_elf(file)) is not None:
            return ProvidedLibrary(elf.needed, frozenset(elf.defined))
    return None


def is_standard(symbol: str) -> bool:
    """Whether the C or C++ runtime defines a symbol, in any version; read from this machine's libraries."""
    return any((library := system_library(name)) and symbol in library.defined for name in STANDARD)


def is_python(symbol: str) -> bool:
    """Whether the interpreter defines a symbol. Whether an abi3 tag allows it is decided by the abi3 check."""
    return re.match(r"_?Py[A-Z_]", symbol) is not None


def is_torch_cxx(symbol: str) -> bool:
    """Whether a symbol is a mangled C++ name of torch: in the namespace `at`, `c10`, `torch` or `caffe2`."""
    return re.match(r"_Z(?:T[VIST]|GV)?N[rVK]*[RO]?(?:2at|3c10|5torch|6caffe2)", symbol) is not None
