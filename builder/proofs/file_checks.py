"""All checks that need only the file and the symbol tables of cells, and those that depend on nothing but the file."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.gate.amounts import counted, grouped, join_names, size_text, subject
from builder.matrix.axes import Cell
from builder.matrix.compat import and_list
from builder.proof import Check, Proof
from builder.proofs.claimed_cells import CellClaims, provided_by_torch
from builder.proofs.static.claim import WheelClaim, make_proof
from builder.proofs.static.contents import check_contents, check_grafted, check_payload, check_size
from builder.proofs.static.gpu_code import check_device_code
from builder.proofs.static.linkage import check_linkage_in
from builder.proofs.static.metadata import check_metadata
from builder.proofs.static.stable_abi import check_abi3, check_stable
from builder.proofs.static.symbol_table import SymbolTable
from builder.proofs.static.tags import check_modules, check_tags, system_libraries
from builder.proofs.static.variants import variants
from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.compatibility import is_driver_library
from builder.wheelfile.facts import Library, WheelFacts, open_wheel

#: Folders that every user may write to.
_SHARED = re.compile(r"/(?:tmp|var/tmp|dev/shm)(?:/|$)")
#: Debug information that is worth a remark, in bytes.
_MUCH_DEBUG = 5 * 2**20


def static_proofs(
    facts: WheelFacts, claim: WheelClaim, provided: frozenset[str], symbols: Mapping[Cell, SymbolTable]
) -> list[Proof]:
    """Run every static check, in the order in which they are printed; linkage once for each claimed cell of `symbols`.

    `provided` holds the file names of libraries that torch and its NVIDIA packages provide (`libcudart.so.13`); those
    of the tables in `symbols` are added.
    """
    provided = provided.union(*(table.libraries for table in symbols.values()))
    proofs = [
        check_payload(facts, claim),
        check_tags(facts, claim, provided),
        check_modules(facts),
        check_metadata(facts, claim),
        check_grafted(facts, provided, foreign=claim.foreign, uses_torch=claim.uses_torch),
        check_contents(facts),
        check_abi3(facts, claim),
        check_stable(facts, claim),
        *(check_linkage_in(facts, claim, cell, symbols[cell]) for cell in claim.cells if cell in symbols),
        check_device_code(facts, claim),
        check_size(facts, claim),
    ]
    return [proof for proof in proofs if proof is not None]


def any_wheel_proofs(path: Path, facts: WheelFacts, fault: str | None = None) -> list[Proof]:
    """Run the checks; reads every byte of the wheel unless `fault` is known. Raises UsageError if it is damaged."""
    if fault is None:
        with open_wheel(path) as wheel:
            fault = wheel_fault(wheel)
    return [check_record(facts, fault), check_loader(facts)]


def check_record(facts: WheelFacts, fault: str) -> Proof:
    """RECORD lists every file with its hash; `fault` is what `wheel_fault` said."""
    return make_proof(facts, Check.RECORD, [fault] if fault else [], good=counted(len(facts.files), "file"))


def check_loader(facts: WheelFacts) -> Proof:
    """The loader accepts the libraries, and finds those of the wheel that its Python modules need."""
    faults = grouped((error, library.path) for library in facts.libraries for error in _errors(library))
    errors = [f"{subject(paths, verb)} {text}" for (verb, text), paths in faults.items()]
    lost, late = _unreached(facts)
    errors += lost
    runtimes = min((sorted(CellClaims(one).runtimes) for one in variants(facts)), key=len)
    if len(runtimes) > 1:
        errors.append(
            f"the libraries need the runtimes of CUDA {and_list(runtimes)}: two runtimes in one process, and torch has"
            " one of them; build all libraries with one toolkit"
        )
    remarks = [*late, *_stray_folders(facts)]
    remarks += [
        f"{one.path} contains {size_text(one.debug)} of debug information: `strip --strip-debug` removes it"
        for one in facts.libraries
        if one.debug > _MUCH_DEBUG
    ]
    return make_proof(facts, Check.LOADER, errors, good="nothing unusual", remarks=remarks)


def _errors(library: Library) -> Iterator[tuple[str, str]]:
    """A verb and the rest of the sentence for each fault."""
    if library.execstack:
        yield (
            "need",
            "an executable stack, which glibc 2.41 and newer refuse: add `.section .note.GNU-stack` to the assembler"
            " sources, or link with -z noexecstack",
        )
    if library.textrel:
        yield "have", "text relocations, which hardened systems refuse: compile every source with -fPIC"
    if relative := [folder for folder in library.search if not folder.startswith(("/", "$ORIGIN", "${ORIGIN}"))]:
        shown = join_names([folder or "with an empty entry" for folder in dict.fromkeys(relative)])
        yield "search", f"the current folder for libraries (RPATH {shown}): anyone may put one there"
    if shared := [folder for folder in library.search if _SHARED.match(folder)]:
        yield (
            "search",
            f"folders for libraries that every user may write to (RPATH {join_names(shared)}): remove them with"
            " `patchelf --set-rpath`, or run `auditwheel repair`",
        )


def _unreached(facts: WheelFacts) -> tuple[list[str], list[str]]:
    """Errors and remarks about libraries of the wheel that the loader does not find by its search."""
    outside = provided_by_torch(facts).union(*(system_libraries(library.machine) for library in facts.libraries))
    own = [one for one in facts.unreached if one.name not in outside and not is_driver_library(one.name)]
    users = list(dict.fromkeys(one.user for one in own if one.maybe))
    names = list(dict.fromkeys(one.name for one in own if one.maybe))
    text = f"no search path (RUNPATH) of {join_names(users)} leads to {join_names(names)} in the wheel"
    remarks = [f"{text}, so Python must load the needed library first"] if users else []
    return [f"{one.user} needs {one.name}, {one.why}" for one in own if not one.maybe], remarks


def _stray_folders(facts: WheelFacts) -> Iterator[str]:
    folders = {
        library.path: [folder for folder in library.search if folder.startswith("/") and not _SHARED.match(folder)]
        for library in facts.libraries
    }
    if users := [path for path, found in folders.items() if found]:
        found = list(dict.fromkeys(folder for path in users for folder in folders[path]))
        yield f"{subject(users, 'search')} also {join_names(found)} for libraries, a folder of the build machine"
