"""Check LibTorch's stable ABI and Python's: which functions a library uses, and since which release they exist."""

import re

from packaging.tags import parse_tag

from builder.gate.amounts import grouped, join_names
from builder.gate.imports.extension_modules import MODULE_FILE, entry_points
from builder.gate.system.process_end import demangle
from builder.matrix.axes import ABI3T_SINCE, AbiClass, Python
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, make_proof
from builder.proofs.static.linkage import CUDA_CALL, is_python, is_standard, is_torch_cxx
from builder.wheelfile.compatibility import SHIM, is_driver_library, oldest_python, oldest_torch, only_new, shims
from builder.wheelfile.facts import TORCH_LIBRARY, Library, WheelFacts

#: Libraries of glibc and GCC, and of CUDA as far as each of their symbols has a version.
_EXPLAINED_LIBRARY = re.compile(
    r"(?:lib(?:c|m|dl|pthread|rt|util|gcc_s|stdc\+\+|gomp)|ld-linux[\w-]*"
    r"|libcu(?:dart|blas|blasLt|fft|rand|solver|sparse))\.so(?:\.\d+)*"
)
_CUDA_LIBRARY = re.compile(r"lib(?:cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nv|nccl)")
#: Symbols of the C++ standard library. The checks `tags` and `linkage` decide whether they are there.
_STANDARD_CXX = re.compile(r"_Z(?:T[VIST]|GV)?(?:N[rVK]*[RO]?)?S[tabisod]")


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
    oldest = oldest_torch(symbol for library in facts.libraries for symbol in library.undefined)
    floor = oldest.series if oldest else ""
    good = f"torch >= {floor}" if floor else "uses no function of torch"
    return make_proof(facts, Check.STABLE, errors, good=good, evidence={"floor": floor}, remarks=remarks)


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
    newer = grouped((known[one], one) for one in undefined if one in known and known[one] > claim.torch)
    # Functions of the driver have no symbol version: only a linked driver library shows that they are the driver's.
    has_driver = any(is_driver_library(name) for name in library.needed)
    # So have functions of zlib or NCCL, for example. The check of the linkage looks for them in the libraries.
    has_other = any(
        not (TORCH_LIBRARY.fullmatch(name) or _EXPLAINED_LIBRARY.fullmatch(name))
        and name not in files
        and not is_driver_library(name)
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
    for since, names in sorted(newer.items()):
        errors.append(
            f"{library.path} needs torch {since.series} for {join_names(names)}, but a wheel of the class `stable` "
            f"must work with torch {claim.torch.series}: lower TORCH_TARGET_VERSION, or set"
            f" `abi: [{{class: stable, torch: '>={since.series}'}}]` in extension.yaml"
        )
    if unknown := [symbol for symbol in unexplained if SHIM.fullmatch(symbol)]:
        errors.append(
            f"{library.path} uses {join_names(unknown)}, which no torch release in buildfarm's table shims.yaml exports"
        )
    if other := [symbol for symbol in unexplained if not SHIM.fullmatch(symbol)]:
        errors.append(f"{library.path} leaves {join_names(other)} undefined; torch has no such C function")
    return errors


#: Functions with an argument PyModuleDef, an incomplete type under Py_TARGET_ABI3T (moduleobject.h of 3.15.2).
_OF_DEFINITIONS = frozenset({"PyModuleDef_Init", "PyModule_Create2", "PyModule_FromDefAndSpec2"})

#: CPython exports these since 3.8 at least (seen in 3.8.18), and counts them as stable only since 3.10 to 3.12.
_EXPORTED_EARLY = re.compile(
    r"PyUnicode_AsUTF8AndSize|PyObject_(GetBuffer|CopyData)|PyMemoryView_FromBuffer|PyVectorcall_Call"
    r"|PyBuffer_(Release|FillInfo|IsContiguous|GetPointer|FromContiguous|ToContiguous|FillContiguousStrides)"
)


def check_abi3(facts: WheelFacts, claim: WheelClaim) -> Proof | None:
    """Every Python function used is in the stable ABI of the oldest Python in the tags, or that looks for the file.

    The table of the stable ABI is that of abi3audit (abi3info). None when neither a tag (abi3, abi3t) nor the claim is
    of the stable ABI. A wheel that is claimed for every Python but tagged for one fails, unless it calls no Python
    function.
    """
    oldest = [python for line in facts.tags for tag in parse_tag(line) if (python := oldest_python(tag))]
    used = {library.path: [s for s in library.undefined if is_python(s)] for library in facts.libraries}
    errors, remarks = [], []
    if not oldest:
        if claim.abi is AbiClass.CPYTHON:
            return None
        if any(used.values()):
            errors.append(
                f"the recipe claims one binary for every Python, but the wheel is tagged {join_names(facts.tags)}: "
                'build with py_limited_api=True, and set py_limited_api="cp310" for bdist_wheel'
            )
        return make_proof(facts, Check.ABI3, errors, good="calls no Python function")
    for path, symbols in used.items():
        file = MODULE_FILE.fullmatch(path.rpartition("/")[2])
        floor = max(min(oldest), ABI3T_SINCE) if file and only_new(file) else min(oldest)
        added = {symbol: _added(symbol) for symbol in symbols}
        private = sorted(symbol for symbol, version in added.items() if version is None)
        newer = sorted(f"{symbol} ({version})" for symbol, version in added.items() if version and version > floor)
        if claim.foreign and newer and all(_EXPORTED_EARLY.fullmatch(one.partition(" ")[0]) for one in newer):
            remarks.append(f"{path} uses {join_names(newer)}, which CPython has exported, but not as stable, since 3.8")
            newer = []
        if private:
            errors.append(
                f"{path} uses {join_names(private)}, which Python's stable ABI does not have: define Py_LIMITED_API"
            )
        if newer:
            errors.append(f"{path} uses {join_names(newer)}, which Python {floor} of the wheel's tag does not have")
        if file and file["abi"] == "abi3t" and (definitions := sorted(_OF_DEFINITIONS.intersection(symbols))):
            errors.append(
                f"{path} uses {join_names(definitions)}, whose PyModuleDef abi3t does not have: define"
                f" Py_TARGET_ABI3T=0x030f0000, and export {entry_points(file['module'])[1]}"
            )
    return make_proof(facts, Check.ABI3, errors, good=f"Python >= {min(oldest)}", remarks=remarks)


def _added(symbol: str) -> Python | None:
    """The Python release that added the symbol to the stable ABI, or None."""
    from abi3info import DATAS, FUNCTIONS  # type: ignore[import-untyped]  # noqa: PLC0415 - loads slowly
    from abi3info.models import Symbol  # type: ignore[import-untyped]  # noqa: PLC0415

    entry = FUNCTIONS.get(Symbol(symbol)) or DATAS.get(Symbol(symbol))
    return Python(entry.added.major, entry.added.minor) if entry is not None else None
