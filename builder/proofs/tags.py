"""The tags of a wheel against what its libraries need: no tag may promise an older system than they run on.

The platform is judged by auditwheel's own policies on the facts of the final file; auditwheel's analysis
itself would move this process into another folder while it works, and builds run side by side.
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
from builder.proofs.claim import Claim, judge, listed
from builder.proofs.symbols import is_driver
from builder.wheels.facts import Library, WheelFacts

_PLATFORM = re.compile(r"(?P<kind>(?:many|musl)?linux)(?:\w+?)??_(?P<machine>x86_64|aarch64|i686|armv7l|ppc64le|s390x)")
_LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")


@cache
def _policies(machine: str) -> WheelPolicies:
    return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))


@cache
def system_libraries(machine: str) -> frozenset[str]:
    """Libraries that a manylinux system provides, as auditwheel's policies list them, and the ELF loader."""
    return frozenset(_LOADERS).union(*(policy.whitelist for policy in _policies(machine)))


def check_tags(facts: WheelFacts, claim: Claim, provided: frozenset[str]) -> Proof:
    """File name and WHEEL agree, the platform holds for every library, and each claimed cell takes the wheel.

    `provided` holds the file names of the libraries that torch and its NVIDIA packages bring: those need not
    be in the wheel.
    """
    named = parse_wheel_filename(facts.filename)[3]
    written = frozenset(tag for line in facts.tags for tag in parse_tag(line))
    faults = []
    if named != written:
        faults.append(
            f"the file name says {_say(named)}, its WHEEL says {_say(written) or 'nothing'}: "
            "set both with `wheel tags`, never by renaming the file"
        )
    for platform in sorted({tag.platform for tag in named | written}):
        faults += _platform_faults(facts, platform, provided)
    refusing = [str(cell) for cell in claim.cells if not any(_takes(cell, tag) for tag in named)]
    if refusing:
        faults.append(f"pip in {listed(refusing)} does not take a wheel tagged {_say(named)}")
    evidence = {"file": _say(named), "wheel": _say(written), "platform": best_platform(facts, provided)}
    return judge(facts, Check.TAGS, faults, good=_say(named), evidence=evidence)


def best_platform(facts: WheelFacts, provided: frozenset[str]) -> str:
    """The platform that auditwheel's policies allow: `any`, `manylinux_2_28_x86_64` or `linux_x86_64`."""
    if not facts.libraries:
        return "any"
    machine = facts.libraries[0].machine
    if machine not in list(Architecture.__members__):
        return f"linux_{machine}"
    strictest_first = sorted(_policies(machine), reverse=True)
    return next(str(policy.name) for policy in strictest_first if not _broken(facts, policy, provided))


def _platform_faults(facts: WheelFacts, platform: str, provided: frozenset[str]) -> list[str]:
    if not facts.libraries:
        return []
    match = _PLATFORM.fullmatch(platform)
    if match is None:
        return [f"it holds libraries, so {platform} is not its platform"]
    machine = match["machine"]
    if match["kind"] == "musllinux":
        return ["torch has no wheels for musl, so nothing built against it runs there"]
    if other := [f"{one.path} ({one.machine})" for one in facts.libraries if one.machine != machine]:
        return [f"{listed(other)} is not for {machine}"]
    return _promise_faults(facts, platform, machine, provided)


def _promise_faults(facts: WheelFacts, platform: str, machine: str, provided: frozenset[str]) -> list[str]:
    if platform == f"linux_{machine}":
        best = best_platform(facts, provided)
        if best.startswith("manylinux"):
            return [f"{platform} lets pip install it anywhere, but it needs {best}: run `auditwheel repair` on it"]
        return _strangers(facts, system_libraries(machine), provided, "manylinux")
    try:
        policy = _policies(machine).get_policy_by_name(platform)
    except LookupError:
        return [f"auditwheel knows no platform {platform}"]
    return _broken(facts, policy, provided)


def _broken(facts: WheelFacts, policy: Policy, provided: frozenset[str]) -> list[str]:
    """What keeps the libraries from running on every system of this policy."""
    if policy.priority == 0:  # auditwheel's `linux`: no promise, so nothing to break
        return []
    faults = []
    for library in facts.libraries:
        too_new = {
            version
            for versions in library.versions.values()
            for version in versions
            if (known := policy.symbol_versions.get(version.partition("_")[0])) is not None
            and version.partition("_")[2] not in known
        }
        if too_new:
            faults.append(f"{library.path} needs {listed(_users(library, too_new))}, newer than {policy.name} promises")
        private = [symbol for name in set(library.needed) & set(policy.blacklist) for symbol in policy.blacklist[name]]
        if used := sorted(set(private) & set(library.undefined)):
            faults.append(f"{library.path} uses {listed(used)}, which {policy.name} does not promise")
    return faults + _strangers(facts, policy.whitelist, provided, policy.name)


def _users(library: Library, versions: set[str]) -> list[str]:
    """Symbols that ask for these versions, as `memcpy@GLIBC_2.14`; a version of weak symbols stands alone."""
    users = [f"{symbol}@{version}" for symbol, (_, version) in library.bound.items() if version in versions]
    return users + sorted(versions - {user.rpartition("@")[2] for user in users})


def _strangers(facts: WheelFacts, system: frozenset[str], provided: frozenset[str], promise: str) -> list[str]:
    """Libraries needed that are nowhere: not in the wheel, not with torch, not in the system promised."""
    inside = {name for library in facts.libraries for name in (library.basename, library.soname)}
    faults = []
    for library in facts.libraries:
        missing = [
            name
            for name in library.needed
            if name not in inside | provided | system and name not in _LOADERS and not is_driver(name)
        ]
        if missing:
            faults.append(f"{library.path} needs {listed(missing)}, which neither torch nor {promise} provides")
    return faults


def _takes(cell: Cell, tag: Tag) -> bool:
    """Whether pip in this cell accepts the tag, the glibc of its system apart."""
    machine = str(cell.platform).removeprefix("linux_")
    if tag.platform != "any" and not tag.platform.endswith(f"_{machine}"):
        return False
    if tag.abi == "none":
        return tag.interpreter in (f"py{cell.python.major}", cell.python.tag)
    if tag.abi == "abi3":
        oldest = re.fullmatch(r"cp3(\d+)", tag.interpreter)
        return oldest is not None and not cell.python.free_threaded and cell.python.minor >= int(oldest[1])
    return tag.interpreter == cell.python.tag.rstrip("t") and tag.abi == cell.python.tag


def _say(tags: frozenset[Tag]) -> str:
    return ", ".join(sorted(map(str, tags)))
