"""Check the tags of a wheel: no tag may promise an older system than the libraries need.

auditwheel's policies decide about the platform, applied to the facts of the final file. auditwheel's own analysis is
not used: it changes the working directory of the process, and builds run in parallel.
"""

from __future__ import annotations

import re
from functools import cache

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import Policy, WheelPolicies
from packaging.tags import Tag, parse_tag
from packaging.utils import parse_wheel_filename

from builder.matrix.axes import Cell
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, join_names, make_proof
from builder.wheelfile.compatibility import admits
from builder.wheelfile.driver import is_driver_library
from builder.wheelfile.facts import Library, WheelFacts

_PLATFORM = re.compile(r"(?P<kind>(?:many|musl)?linux)(?:\w+?)??_(?P<machine>x86_64|aarch64|i686|armv7l|ppc64le|s390x)")
_LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")


@cache
def _policies(machine: str) -> WheelPolicies:
    return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))


@cache
def system_libraries(machine: str) -> frozenset[str]:
    """Libraries that a manylinux system provides, as auditwheel's policies list them, and the ELF loader."""
    return frozenset(_LOADERS).union(*(policy.whitelist for policy in _policies(machine)))


def check_tags(facts: WheelFacts, claim: WheelClaim, provided: frozenset[str]) -> Proof:
    """File name and WHEEL agree, the platform suits every library, and every claimed cell accepts the wheel.

    `provided` holds the file names of the libraries that torch and its NVIDIA packages provide: the wheel need not
    hold them.
    """
    named = parse_wheel_filename(facts.filename)[3]
    written = frozenset(tag for line in facts.tags for tag in parse_tag(line))
    errors = []
    if named != written:
        errors.append(
            f"the file name has the tags {_text(named)}, but WHEEL has {_text(written) or 'none'}: "
            "set both with `wheel tags`; do not rename the file"
        )
    for platform in sorted({tag.platform for tag in named | written}):
        errors += _platform_errors(facts, platform, provided)
    rejecting = [str(cell) for cell in claim.cells if not any(_accepts(cell, tag) for tag in named)]
    if rejecting:
        errors.append(f"pip in {join_names(rejecting)} does not accept a wheel tagged {_text(named)}")
    evidence = {"file": _text(named), "wheel": _text(written), "platform": best_platform(facts, provided)}
    return make_proof(facts, Check.TAGS, errors, good=_text(named), evidence=evidence)


def best_platform(facts: WheelFacts, provided: frozenset[str]) -> str:
    """The best platform that auditwheel's policies allow: `any`, `manylinux_2_28_x86_64` or `linux_x86_64`."""
    if not facts.libraries:
        return "any"
    machine = facts.libraries[0].machine
    if machine not in list(Architecture.__members__):
        return f"linux_{machine}"
    strictest_first = sorted(_policies(machine), reverse=True)
    return next(str(policy.name) for policy in strictest_first if not _broken(facts, policy, provided))


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
    return _promise_errors(facts, platform, machine, provided)


def _promise_errors(facts: WheelFacts, platform: str, machine: str, provided: frozenset[str]) -> list[str]:
    if platform == f"linux_{machine}":
        best = best_platform(facts, provided)
        if best.startswith("manylinux"):
            return [
                f"pip installs the tag {platform} on any Linux, but the wheel needs {best}: run `auditwheel repair`"
            ]
        return _unprovided(facts, system_libraries(machine), provided, "manylinux")
    try:
        policy = _policies(machine).get_policy_by_name(platform)
    except LookupError:
        return [f"auditwheel does not know the platform {platform}"]
    return _broken(facts, policy, provided)


def _broken(facts: WheelFacts, policy: Policy, provided: frozenset[str]) -> list[str]:
    """Why the libraries do not run on every system of this policy."""
    if policy.priority == 0:  # auditwheel's `linux` policy promises nothing
        return []
    errors = []
    for library in facts.libraries:
        too_new = {
            version
            for versions in library.versions.values()
            for version in versions
            if (known := policy.symbol_versions.get(version.partition("_")[0])) is not None
            and version.partition("_")[2] not in known
        }
        if too_new:
            errors.append(
                f"{library.path} needs {join_names(_users(library, too_new))}, newer than {policy.name} guarantees"
            )
        private = [symbol for name in set(library.needed) & set(policy.blacklist) for symbol in policy.blacklist[name]]
        if used := sorted(set(private) & set(library.undefined)):
            errors.append(f"{library.path} uses {join_names(used)}, which {policy.name} does not guarantee")
    return errors + _unprovided(facts, policy.whitelist, provided, policy.name)


def _users(library: Library, versions: set[str]) -> list[str]:
    """Symbols that need these versions, as `memcpy@GLIBC_2.14`; a version that only weak symbols need, by itself."""
    users = [f"{symbol}@{version}" for symbol, (_, version) in library.bound.items() if version in versions]
    return users + sorted(versions - {user.rpartition("@")[2] for user in users})


def _unprovided(facts: WheelFacts, system: frozenset[str], provided: frozenset[str], system_name: str) -> list[str]:
    """Needed libraries that neither the wheel, nor torch, nor the promised system provides."""
    inside = {name for library in facts.libraries for name in (library.basename, library.soname)}
    errors = []
    for library in facts.libraries:
        missing = [
            name
            for name in library.needed
            if name not in inside | provided | system and name not in _LOADERS and not is_driver_library(name)
        ]
        if missing:
            errors.append(f"{library.path} needs {join_names(missing)}, which neither torch nor {system_name} provides")
    return errors


def _accepts(cell: Cell, tag: Tag) -> bool:
    """Whether pip in this cell accepts the tag, whatever the glibc of its system."""
    return admits(tag, cell.python, str(cell.platform).removeprefix("linux_"))


def _text(tags: frozenset[Tag]) -> str:
    return ", ".join(sorted(map(str, tags)))
