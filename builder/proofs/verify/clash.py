"""Whether a wheel clashes with packages beside it in one process, by the rules of glibc's dynamic loader.

Python loads each extension module with RTLD_LOCAL, so equal names of functions in two packages are no clash. What two
packages share nevertheless (glibc: elf/dl-load.c, elf/dl-lookup.c):

- A library that another one needs by name is loaded once for each name (soname). The second package gets the first
  one's library.
- A symbol with the binding STB_GNU_UNIQUE, such as a static member of a C++ template, exists once in a process.
- torch allows one TORCH_LIBRARY for each name of an op library, and refuses the second.
- Installers put files of the same path over each other, and Python imports one module of each name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from builder.gate.imports.extension_modules import ENTRY_POINT, MODULE_FILE
from builder.gate.system.demangle import demangle
from builder.matrix.axes import Cell
from builder.matrix.compat import and_list
from builder.proof import Check, Proof
from builder.proofs.static.claim import join_names, make_proof
from builder.proofs.static.common_names import is_common_module
from builder.wheelfile.archive import WheelContents
from builder.wheelfile.exports import Exports, read_op_libraries
from builder.wheelfile.facts import WheelFacts, installed_path

#: Symbols that every library has, and the entry points of Python modules, which Python finds in each library by itself.
_OF_EVERY_LIBRARY = re.compile(rf"{ENTRY_POINT.pattern}|_init|_fini|__bss_start|_edata|_end|__odr_asan\w*")
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")
#: Objects of headers that many packages compile in, and that are made to be shared: C++ library, torch, pybind11,
#: CUDA's C++ libraries.
_OF_HEADERS = re.compile(
    r"_Z(?:GV|T[VIST])?Z?N?[rVK]*[RO]?(?:S[tabsiod]|9__gnu_cxx|10__cxxabiv1|2at|3c10|5torch|6caffe2|8pybind11|4cuda|3cub|6thrust)"
)


@dataclass(frozen=True)
class Neighbour:
    """A package beside the wheel: its project, its name with its version, its libraries, and the hash of each file."""

    project: str
    name: str
    exports: tuple[Exports, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Together:
    """What one of several wheels shares with the others if they are installed together."""

    #: Its canonical name.
    project: str
    #: Name and version.
    name: str
    #: The cells that it claims.
    cells: frozenset[Cell]
    #: What it registers with TORCH_LIBRARY.
    op_libraries: frozenset[str]
    #: The hash of each file below site-packages.
    files: Mapping[str, str]


def files_of(wheel: WheelContents) -> dict[str, str]:
    """The hash in RECORD of each file of a wheel below site-packages, by its path there."""
    return {path: hashed for name, hashed in wheel.record_rows().items() if (path := installed_path(name))}


def together(wheel: WheelContents, facts: WheelFacts, cells: Iterable[Cell]) -> Together:
    """What a wheel for these cells shares with other wheels."""
    return Together(
        canonicalize_name(facts.name),
        f"{facts.name} {facts.version}",
        frozenset(cells),
        read_op_libraries(wheel, facts.libraries),
        files_of(wheel),
    )


def clashes_together(wheel: Together, others: Sequence[Together]) -> list[str]:
    """What keeps a wheel from being used with other ones of a run, one sentence for each.

    Two wheels of one project, and two wheels that share no cell, are never in one environment.
    """
    found: list[str] = []
    for other in others:
        if other.project != wheel.project and wheel.cells & other.cells:
            found += _op_libraries(wheel.op_libraries, other.op_libraries, other.name)
            found += [text for text, fails in _files(wheel.files, other.files, other.name) if fails]
    return list(dict.fromkeys(found))


def check_clash(
    facts: WheelFacts, own: Sequence[Exports], neighbours: Sequence[Neighbour], files: Mapping[str, str]
) -> Proof:
    """No library, object, op library or module of the wheel stands for one of a neighbour that is different.

    `files` are those of the wheel, as `files_of` returns them.
    """
    errors: list[str] = []
    remarks: list[str] = []
    for other in neighbours:
        errors += _op_libraries(_registered(own), _registered(other.exports), other.name)
        for text, fails in (*_files(files, other.files, other.name), *_names(own, other), *_objects(own, other)):
            (errors if fails else remarks).append(text)
        remarks += _functions(own, other)
    names = [one.name for one in neighbours if one.exports]
    good = f"beside {join_names(names)}" if names else "no package beside the wheel has libraries"
    return make_proof(facts, Check.CLASH, errors, good=good, remarks=remarks)


def _files(own: Mapping[str, str], theirs: Mapping[str, str], name: str) -> Iterator[tuple[str, bool]]:
    """Files that the second installation overwrites, and modules of which Python imports one."""
    both = sorted(path for path in own if path in theirs and own[path] != theirs[path])
    code = [path for path in both if path.endswith((".py", ".pyi")) or _LIBRARY.search(path)]
    stray = [path for path in code if is_common_module(path.partition("/")[0], "") and not _LIBRARY.search(path)]
    if broken := [path for path in code if path not in stray]:
        text = (
            f"{name} also installs {join_names(broken)}, with a different content: the later installation wins;"
            " install them in separate environments, or move the files into a package of the project's own name"
        )
        yield text, True
    if rest := [path for path in both if path not in broken]:
        text = f"{name} also installs {join_names(rest)}, with a different content: the later installation wins"
        yield f"{text}; leave them out of the wheel", False
    mine, other = _modules(own), _modules(theirs)
    for module in sorted(mine.keys() & other.keys()):
        if mine[module] != other[module]:
            text = (
                f"{name} also installs a module {module} ({other[module]}, here {mine[module]}): Python imports one"
                " of them; move it into a package of the project's own name, such as"
                f' `CUDAExtension("PACKAGE.{module}", ...)`'
            )
            yield text, True


def _modules(files: Iterable[str]) -> dict[str, str]:
    """The extension modules at the top of site-packages, and the packages, by name; namespace packages are none."""
    found: dict[str, str] = {}
    for path in sorted(files):
        top, _, rest = path.partition("/")
        if rest == "__init__.py" or (not rest and (top.endswith(".py") or MODULE_FILE.fullmatch(top))):
            found.setdefault(top.partition(".")[0], path)
    return found


def _op_libraries(own: frozenset[str], theirs: frozenset[str], name: str) -> Iterator[str]:
    """Op libraries that both register; torch raises an error at the second import."""
    if both := own & theirs:
        yield (
            f"{name} also registers the op library {and_list(sorted(both))} with TORCH_LIBRARY: the import of the"
            " second fails; rename one, or use TORCH_LIBRARY_FRAGMENT in both"
        )


def _registered(exports: Iterable[Exports]) -> frozenset[str]:
    return frozenset().union(*(one.op_libraries for one in exports))


def _names(own: Sequence[Exports], other: Neighbour) -> Iterator[tuple[str, bool]]:
    """Different libraries that the loader takes for one, because a library needs them by their name."""
    needed = {name for one in (*own, *other.exports) for name in one.library.needed}
    theirs = {one.name: one for one in other.exports}
    for mine in own:
        their = theirs.get(mine.name)
        if their is None or mine.name not in needed or not _differ(mine, their):
            continue
        both = f"{mine.library.path} and {their.library.path} of {other.name} are both {mine.name}"
        if mine.library.defined == their.library.defined:
            yield f"{both} and define the same symbols, but differ: the loader takes the first for both", False
            continue
        lack = _lack(own, mine, their, other.name, "this wheel") or _lack(
            other.exports, their, mine, "this wheel", other.name
        )
        text = (
            f"{both}, but define different symbols: the loader takes the first for both"
            f"{f', {lack}' if lack else ''}; give one a name of its own, as `auditwheel repair` does"
        )
        yield text, True


def _lack(users: Sequence[Exports], wanted: Exports, given: Exports, first: str, second: str) -> str:
    """What the users of a library miss if they get the other library of its name."""
    used = {symbol for one in users if wanted.name in one.library.needed for symbol in one.library.undefined}
    missing = sorted(used & set(wanted.library.defined) - set(given.library.defined))
    if not missing:
        return ""
    return f"so after the import of {first}, {second} lacks {join_names([demangle(name) for name in missing])}"


def _objects(own: Sequence[Exports], other: Neighbour) -> Iterator[tuple[str, bool]]:
    """Objects that exist once in a process although both packages define them."""
    theirs = {name: (size, one) for one in other.exports for name, size in one.unique.items()}
    found = [
        (name, size, theirs[name][0])
        for one in own
        for name, size in one.unique.items()
        if name in theirs and _differ(one, theirs[name][1])
    ]
    unequal = [f"{demangle(name)} ({size} and {their} bytes)" for name, size, their in found if size != their]
    if unequal:
        text = (
            f"{other.name} also defines {join_names(unequal)}, of which a process has one (STB_GNU_UNIQUE): the"
            " second library uses the object of the first, which has another size; compile with -fno-gnu-unique or"
            " -fvisibility=hidden"
        )
        yield text, True
    equal = sorted({demangle(name) for name, size, their in found if size == their and not _OF_HEADERS.match(name)})
    if equal:
        text = (
            f"the wheel shares {join_names(equal)} with {other.name} (STB_GNU_UNIQUE): both must be compiled from"
            " the same headers"
        )
        yield text, False


def _functions(own: Sequence[Exports], other: Neighbour) -> Iterator[str]:
    """Functions and objects of one name, which are a clash only if somebody loads a library with RTLD_GLOBAL."""
    theirs = [one for one in other.exports if not one.library.foreign]
    names = {
        name
        for mine in own
        if not mine.library.foreign
        for their in theirs
        if _differ(mine, their)
        for name in mine.strong & their.strong
        if not _OF_EVERY_LIBRARY.fullmatch(name)
    }
    if names:
        shown = join_names(sorted(map(demangle, names)))
        yield (
            f"{other.name} exports {shown} too: harmless as Python loads modules, but with RTLD_GLOBAL both would call"
            " the first; compile with -fvisibility=hidden"
        )


def _differ(one: Exports, other: Exports) -> bool:
    return one.sha256 != other.sha256
