"""Check the tags of a wheel: none promises an older system, or a Python that does not find the modules.

auditwheel's policies decide about the platform, applied to the facts of the final file. auditwheel's own analysis is
not used: it changes the working directory of the process, and builds run in parallel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import Policy, WheelPolicies
from packaging.tags import Tag, parse_tag
from packaging.utils import parse_wheel_filename

from builder.gate.amounts import counted, grouped, join_names, subject
from builder.gate.imports.extension_modules import ENTRY_POINT, MODULE_FILE, entry_points
from builder.gate.system.process_end import demangle
from builder.matrix.axes import ABI3T_SINCE, Python
from builder.matrix.compat import Compat
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, make_proof
from builder.proofs.static.metadata import RELABEL, lower_bounds, requires_admit
from builder.proofs.static.variants import variants
from builder.wheelfile.compatibility import admits, any_linux, finds, glibc_of, is_driver_library, suiting
from builder.wheelfile.facts import Library, WheelFacts

_PLATFORM = re.compile(
    r"(?P<kind>(?:many|musl)?linux)(?:\w+?)??_(?P<machine>x86_64|aarch64|i686|armv7l|ppc64le|s390x|riscv64"
    r"|loongarch64)"
)
#: Libraries of torch and CUDA: torch.ops.load_library and ctypes load what links them by path.
_BY_PATH = re.compile(r"\blib(?:torch|c10|cuda)")
#: In a wheel of somebody else, it suffices that one of the builds suits the tag.
_OTHER_BUILDS = "other builds of the library in this wheel suit the tag"
_LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
#: The glibc with these symbol versions (NEWS of glibc 2.36 and 2.42). The loader needs that of DT_RELR for relocations
#: that an older one ignores, also in a library that names no version.
_RELR = "GLIBC_ABI_DT_RELR"
_ABI_VERSIONS = {_RELR: (2, 36), "GLIBC_ABI_DT_X86_64_PLT": (2, 42), "GLIBC_ABI_GNU2_TLS": (2, 42)}


@cache
def _policies(machine: str) -> WheelPolicies:
    return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))


@cache
def _known(machine: str) -> dict[tuple[int, int], Policy]:
    """auditwheel's policies by glibc, the oldest first, without `linux`, which promises nothing."""
    return {glibc: one for one in sorted(_policies(machine), reverse=True) if (glibc := glibc_of(one.name))}


@cache
def system_libraries(machine: str) -> frozenset[str]:
    """Libraries of manylinux systems, by auditwheel's policies, and the ELF loader; else the loader alone."""
    if machine not in Architecture.__members__:
        return frozenset(_LOADERS)
    return frozenset(_LOADERS).union(*(policy.whitelist for policy in _policies(machine)))


def check_tags(facts: WheelFacts, claim: WheelClaim, provided: frozenset[str]) -> Proof:
    """File name and WHEEL agree, the platform suits every library, and every claimed cell accepts the wheel.

    Installers read the tags of the file name alone; pip 26.3 and uv 0.13.9 read those of WHEEL in `pip check`, where
    `linux` suits every Linux. Several official wheels for manylinux have `linux` there.
    `provided` holds the file names of the libraries that torch and its NVIDIA packages provide: the wheel need not
    hold them. A wheel that does not use torch may need others, which is a remark, and may be for musl.
    """
    named = parse_wheel_filename(facts.filename)[3]
    written = frozenset(tag for line in facts.tags for tag in parse_tag(line))
    errors: list[str] = []
    remarks: list[str] = []
    if named != written:
        same = claim.foreign and {*map(any_linux, named)} == {*map(any_linux, written)}
        text = f"the file name has the tags {_text(named)}, but WHEEL has {_text(written) or 'none'}: {RELABEL}"
        (remarks if same else errors).append(text)
    platforms = sorted({tag.platform for tag in named})
    if not claim.uses_torch:
        platforms = [platform for platform in platforms if not platform.startswith("musllinux")]
        needed = provided.union(*(library.needed for library in facts.libraries))
        lacking = [error for platform in platforms[:1] for error in _platform_errors(facts, platform, provided)]
        remarks += [error for error in lacking if error not in _platform_errors(facts, platforms[0], needed)]
        provided = needed
    found = [error for platform in platforms for error in _platform_errors(facts, platform, provided)]
    inside = provided.union(*((one.basename, one.soname) for one in facts.libraries))
    dispensable = _dispensable(facts, claim.spare, platforms, provided) if found and claim.foreign else ""
    late: list[str] = []
    if dispensable:
        alone = {one.path: replace(facts, libraries=(one,)) for one in facts.libraries}
        late = [path for path, one in alone.items() if any(_platform_errors(one, each, inside) for each in platforms)]
        others = [path for path in late if path not in found[0]]
        more = f"; so do {join_names(others)}" if others else ""
        remarks.append(f"{found[0]}{more}: {dispensable}")
    else:
        errors += found
    rejecting = [
        str(cell) for cell in claim.cells if not any(admits(tag, cell.python, cell.platform.machine) for tag in named)
    ]
    if rejecting:
        errors.append(f"pip in {join_names(rejecting)} does not accept a wheel tagged {_text(named)}")
    rest = replace(facts, libraries=tuple(one for one in facts.libraries if one.path not in late))
    evidence = {"file": _text(named), "wheel": _text(written), "platform": best_platform(rest, inside), "late": late}
    return make_proof(facts, Check.TAGS, errors, good=_text(named), evidence=evidence, remarks=remarks)


def _dispensable(facts: WheelFacts, spare: frozenset[str], platforms: Sequence[str], provided: frozenset[str]) -> str:
    """Why libraries that do not suit the platforms are no failure, as a sentence; empty if they are one."""
    for subset, why in (([facts], "the package works without"), (variants(facts), _OTHER_BUILDS)):
        for one in subset:
            kept = replace(one, libraries=tuple(library for library in one.libraries if library.path not in spare))
            if kept.libraries and not any(_platform_errors(kept, platform, provided) for platform in platforms):
                return why
    return ""


def check_modules(facts: WheelFacts) -> Proof:
    """Every Python that the tags name can import each extension module: it finds the file, and the function in it.

    Python 3.12 imports `_C.cpython-312-x86_64-linux-gnu.so`, `_C.abi3.so` and `_C.so`. Others do not find the first
    one, and free-threaded Pythons do not find the second. A name is no failure if the Python code may load the library
    by its path: it is no module and links torch or CUDA. Neither is a module in versions for several Pythons, or one
    beside a Python file of the same name. The function must have the name of the file if the Python code imports it. Of
    Requires-Python, the lower bounds count: uv ignores the upper ones.
    """
    pythons = [python for python in Compat.load().pythons if _claims(facts, python)]
    modules: dict[str, list[tuple[Library, re.Match[str]]]] = {}
    for library in facts.libraries:
        file = None if library.foreign else MODULE_FILE.fullmatch(library.basename)
        if file and (file["suffix"] != ".so" or library.module_functions):
            modules.setdefault(library.path.removesuffix(file["suffix"]), []).append((library, file))
    errors: list[str] = []
    remarks: list[str] = []
    for stem, files in modules.items():
        if f"{stem}.py" in facts.files:
            continue
        for library, file in files:
            if library.is_module:
                continue
            if library.path in facts.imported and f"{stem}/__init__.py" not in facts.files:
                errors.append(_no_function(library, file["module"]))
            elif library.module_functions and file["suffix"] != ".so":
                remarks.append(_no_function(library, file["module"]))
        lost = [python for python in pythons if not any(finds(python, file, one.machine) for one, file in files)]
        if not lost:
            continue
        library, file = files[0]
        text = _unsuited(facts, files, lost)
        if len(files) > 1 or (not library.is_module and _BY_PATH.search(" ".join(library.needed))):
            remarks.append(text)
        else:
            errors.append(f"{text}: {_finders(file, library.machine)[1]}")
    return make_proof(facts, Check.MODULES, errors, good=counted(len(modules), "module"), remarks=remarks)


def _no_function(library: Library, module: str) -> str:
    """Why `import` finds no function of the module in a library, and what to do."""
    wanted = entry_points(module)[0]
    found = [match for name in library.module_functions if (match := ENTRY_POINT.fullmatch(name))]
    if not found:
        return f"{library.path} exports no {wanted}, so Python cannot import it: load it with torch.ops.load_library"
    return (
        f"{library.path} exports {join_names([each[0] for each in found])}, and Python looks for {wanted}: write"
        f" `PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)` or {wanted} in the source, or let `name` in setup.py end with"
        f" {found[0]['module']}"
    )


def _unsuited(facts: WheelFacts, files: Sequence[tuple[Library, re.Match[str]]], lost: Sequence[Python]) -> str:
    """The Pythons of the tags that find none of the files of one module."""
    library, file = files[0]
    tags, names = _text(parse_wheel_filename(facts.filename)[3]), join_names([*map(str, lost)])
    finder, _ = _finders(file, library.machine)
    text = f"only {finder} finds {library.path}, but the tag {tags} also names Python {names}"
    if len(files) > 1:
        paths = join_names([one.path for one, _ in files])
        text = f"the wheel has {paths} for some Pythons, but none for Python {names}, which the tag {tags} also names"
    if any(not requires_admit(facts.requires_python, python) for python in lost):
        text += f" (uv ignores the upper bounds of Requires-Python {facts.requires_python}; only tags keep Pythons out)"
    return text


def _finders(file: re.Match[str], machine: str) -> tuple[str, str]:
    """Which Python finds a file, and what to do for the others."""
    if file["triplet"] not in (None, f"{machine}-linux-gnu"):
        return f"Python on {file['triplet']}", f"compile it with a Python for {machine}"
    if version := file["version"]:
        cure = "build the module with `py_limited_api=True` in its Extension, or tag the wheel for one Python"
        return f"Python {version[0]}.{version[1:]}", cure
    if file["abi"] == "abi3t":
        cure = f"tag the wheel cp315-abi3.abi3t, or also build the module as {file['module']}.abi3.so"
        return f"Python {ABI3T_SINCE} or later", cure
    if file["triplet"]:
        cure = f"rename it to {file['module']}.abi3.so, compile it with Python 3.14 or older, or tag it cp315-abi3"
        return f"a Python {ABI3T_SINCE} or later with a GIL", cure
    return "a Python with a GIL", "build a wheel for each free-threaded Python, or for abi3t"


def _claims(facts: WheelFacts, python: Python) -> bool:
    """Whether a tag and Requires-Python admit this Python for uv; a free-threaded one only if the tag names it."""
    tags = [tag for tag in parse_wheel_filename(facts.filename)[3] if tag.abi.endswith("t") or not python.free_threaded]
    if not any((tag.interpreter, tag.abi) in suiting(python) for tag in tags):
        return False
    return requires_admit(lower_bounds(facts.requires_python), python)


@dataclass(frozen=True)
class _Systems:
    """The systems that a manylinux tag promises (PEP 600): those with this glibc or a newer one."""

    tag: str
    glibc: tuple[int, ...]
    #: auditwheel's policy for the newest systems up to this glibc that it knows.
    policy: Policy
    #: They are newer than every system that auditwheel knows.
    beyond: bool

    @classmethod
    def of(cls, tag: str, machine: str) -> _Systems | None:
        """Read a platform tag; None for one that promises no glibc."""
        glibc = glibc_of(tag)
        if glibc is None:
            return None
        known = _known(machine)
        return cls(
            tag, glibc, known[max((one for one in known if one <= glibc), default=min(known))], glibc > max(known)
        )

    def have(self, version: str) -> bool:
        """Whether all of them have a symbol version such as `GLIBC_2.34`, as far as auditwheel or glibc says."""
        if need := _glibc_with(version):
            return need <= self.glibc
        kind, _, number = version.partition("_")
        known = self.policy.symbol_versions.get(kind)
        return known is None or number in known or self.beyond


def _glibc_with(version: str) -> tuple[int, ...] | None:
    """The oldest glibc with a symbol version; None for a version that does not say it."""
    if match := re.fullmatch(r"GLIBC_(\d{1,4}(?:\.\d{1,4})+)", version):
        return tuple(map(int, match[1].split(".")))
    return _ABI_VERSIONS.get(version)


def best_platform(facts: WheelFacts, provided: frozenset[str]) -> str:
    """The best platform: `any`, one of auditwheel's policies such as `manylinux_2_28_x86_64`, or `linux_x86_64`.

    For a wheel that needs a glibc that auditwheel does not know, it is the platform of this glibc (PEP 600).
    """
    if not facts.libraries:
        return "any"
    machine = facts.libraries[0].machine
    if machine not in Architecture.__members__:
        return f"linux_{machine}"
    tags = [str(policy.name) for policy in _known(machine).values()]
    needs = [need for library in facts.libraries for version in _versions(library) if (need := _glibc_with(version))]
    tags.append(f"manylinux_{'_'.join(map(str, max(needs, default=(2, 0))[:2]))}_{machine}")
    systems = filter(None, (_Systems.of(tag, machine) for tag in tags))
    return next((one.tag for one in systems if not _broken(facts, one, provided)), f"linux_{machine}")


def _platform_errors(facts: WheelFacts, platform: str, provided: frozenset[str]) -> list[str]:
    if not facts.libraries:
        return []
    match = _PLATFORM.fullmatch(platform)
    if match is None:
        return [f"the wheel contains libraries, so its platform cannot be {platform}"]
    machine = match["machine"]
    if match["kind"] == "musllinux":
        return ["torch has no wheels for musl, so an extension cannot run there"]
    if other := [f"{one.path} ({one.machine})" for one in facts.libraries if one.machine != machine]:
        return [f"{join_names(other)} does not run on {machine}"]
    if systems := _Systems.of(platform, machine):
        return _broken(facts, systems, provided)
    if platform != f"linux_{machine}":
        return [f"{platform} is no platform of PEP 600 such as manylinux_2_28_{machine}"]
    best = best_platform(facts, provided)
    if best.startswith("manylinux"):
        known = best in [policy.name for policy in _known(machine).values()]
        renamed = "rename the file by this platform and run `buildfarm relabel`"
        cure = "run `auditwheel repair`" if known else f"build it on an older system, or {renamed}"
        return [f"pip installs the tag {platform} on any Linux, but the wheel needs {best}: {cure}"]
    if missing := _unprovided(facts, system_libraries(machine), provided, "manylinux"):
        return missing
    newest = _Systems.of(str([*_known(machine).values()][-1].name), machine)
    return _too_new(facts, newest) if newest else []


def _broken(facts: WheelFacts, systems: _Systems, provided: frozenset[str]) -> list[str]:
    """Why the libraries do not run on every one of these systems."""
    errors = _too_new(facts, systems)
    blacklist = systems.policy.blacklist
    for library in facts.libraries:
        private = [symbol for name in set(library.needed) & set(blacklist) for symbol in blacklist[name]]
        if used := sorted(set(private) & set(library.undefined)):
            errors.append(f"{library.path} uses {join_names(used)}, which {systems.tag} does not guarantee")
    return errors + _unprovided(facts, systems.policy.whitelist, provided, systems.tag)


def _too_new(facts: WheelFacts, systems: _Systems) -> list[str]:
    """The symbol versions that these systems may lack, one sentence for libraries that need the same."""
    found = ((one, {version for version in _versions(one) if not systems.have(version)}) for one in facts.libraries)
    users = grouped((join_names(_users(one, versions)), one.path) for one, versions in found if versions)
    return [f"{subject(paths, 'need')} {names}, newer than {systems.tag} guarantees" for names, paths in users.items()]


def _versions(library: Library) -> set[str]:
    versions = {version for names in library.versions.values() for version in names}
    return versions | {_RELR} if library.relr else versions


def _users(library: Library, versions: set[str]) -> list[str]:
    """Symbols that need these versions, as `memcpy@GLIBC_2.14`; a version that only weak symbols need, by itself."""
    users = [f"{demangle(symbol)}@{version}" for symbol, (_, version) in library.bound.items() if version in versions]
    return users + sorted(versions - {user.rpartition("@")[2] for user in users})


def _unprovided(facts: WheelFacts, system: frozenset[str], provided: frozenset[str], system_name: str) -> list[str]:
    """Needed libraries that neither the wheel, nor torch, nor the promised system provides."""
    known = provided.union(system, _LOADERS, *((one.basename, one.soname) for one in facts.libraries))
    users = grouped(
        (tuple(name for name in one.needed if name not in known and not is_driver_library(name)), one.path)
        for one in facts.libraries
    )
    return [
        f"{subject(paths, 'need')} {join_names(missing)}, which neither torch nor {system_name} provides"
        for missing, paths in users.items()
        if missing
    ]


def _text(tags: frozenset[Tag]) -> str:
    return ", ".join(sorted(map(str, tags)))
