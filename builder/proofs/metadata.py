"""METADATA against the claim: the version says which build it is, Requires-Dist admits no torch unproven."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builder.matrix.axes import Cell
from builder.proof import Check, Proof
from builder.proofs.claim import Claim, judge, listed
from builder.wheels.facts import WheelFacts

#: Releases to compare two torch windows on: every patch that is or may come soon.
_TORCHES = [Version(f"{major}.{minor}.{patch}") for major in (1, 2, 3) for minor in range(41) for patch in range(4)]
_TORCH_LIBRARY = re.compile(r"lib(torch|c10)(_\w+)?\.so")


def check_metadata(facts: WheelFacts, claim: Claim) -> Proof:
    """Name and version agree with the file name; local version, torch window and Pythons with the claim."""
    faults = _identity_faults(facts, claim)
    required, unreadable = _requirements(facts.requires_dist)
    faults += [f"Requires-Dist {line!r} cannot be read" for line in unreadable]
    faults += _requires_faults(facts, claim, required)
    faults += _python_faults(facts, claim)
    return judge(
        facts,
        Check.METADATA,
        faults,
        good=facts.version,
        evidence={
            "version": facts.version,
            "requires_dist": list(facts.requires_dist),
            "requires_python": facts.requires_python,
        },
    )


def _identity_faults(facts: WheelFacts, claim: Claim) -> list[str]:
    project, version, _, _ = parse_wheel_filename(facts.filename)
    try:
        written = Version(facts.version)
    except InvalidVersion:
        return [f"METADATA's version {facts.version!r} is not a version (PEP 440)"]
    faults = []
    if canonicalize_name(facts.name) != project:
        faults.append(f"the file is named for {project}, METADATA says {facts.name}")
    if written != version:
        faults.append(f"the file name says version {version}, METADATA says {written}")
    if claim.local and written.local != claim.local:
        faults.append(
            f"the version {written} does not say which build it is: +{claim.local} is missing, "
            "and pip could not tell it from the builds for other torch and CUDA"
        )
    return faults


def _requirements(lines: Iterable[str]) -> tuple[dict[str, list[Requirement]], list[str]]:
    """Requirements by project, those of extras left out; and the lines that are none."""
    found: dict[str, list[Requirement]] = {}
    unreadable = []
    for line in lines:
        try:
            one = Requirement(line)
        except InvalidRequirement:
            unreadable.append(line)
            continue
        if one.marker is None or "extra" not in str(one.marker):
            found.setdefault(canonicalize_name(one.name), []).append(one)
    return found, unreadable


def _requires_faults(facts: WheelFacts, claim: Claim, required: dict[str, list[Requirement]]) -> list[str]:
    faults = []
    for line in claim.requires:
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name not in required:
            faults.append(f"METADATA does not require {line}, so pip would install it beside any {wanted.name}")
        elif name == "torch":
            window = _together(required[name])
            wide = [str(one) for one in _TORCHES if one in window and one not in wanted.specifier]
            if wide:
                faults.append(f"METADATA admits torch {listed(wide)}, which the claim ({line}) does not")
        elif set(wanted.specifier) - set(_together(required[name])):
            faults.append(f"METADATA requires {required[name][0]} where {line} is claimed")
    uses_torch = any(_TORCH_LIBRARY.fullmatch(name) for library in facts.libraries for name in library.needed)
    if "torch" in required:
        window = _together(required["torch"])
        shut = [str(cell) for cell in claim.cells if not _admits(window, cell)]
        if shut:
            faults.append(f"METADATA requires torch{window}, which shuts out the claimed {listed(shut)}")
    elif uses_torch and not claim.requires:
        faults.append("its libraries link torch, but METADATA does not require it")
    return faults


def _together(requirements: list[Requirement]) -> SpecifierSet:
    return SpecifierSet(",".join(str(one.specifier) for one in requirements if str(one.specifier)))


def _admits(window: SpecifierSet, cell: Cell) -> bool:
    # A pin such as ==2.11.0+cu130 takes only the release of torch's own index, which has that local version.
    return str(cell.torch) in window or f"{cell.torch}+{cell.cuda.variant}" in window


def _python_faults(facts: WheelFacts, claim: Claim) -> list[str]:
    if not facts.requires_python:
        return []
    try:
        pythons = SpecifierSet(facts.requires_python)
    except InvalidSpecifier:
        return [f"Requires-Python {facts.requires_python!r} cannot be read"]
    faults = []
    shut = sorted(
        {str(cell.python) for cell in claim.cells if f"{cell.python.major}.{cell.python.minor}.99" not in pythons}
    )
    if shut:
        faults.append(f"Requires-Python {facts.requires_python} shuts out the claimed Python {listed(shut)}")
    for tag in sorted({tag.interpreter for line in facts.tags for tag in parse_tag(line) if tag.abi == "abi3"}):
        # `cp310` says 3.10 and later; a Requires-Python without any of them makes a wheel nobody can install.
        oldest = int(tag.removeprefix("cp3"))
        if not any(f"3.{minor}.99" in pythons for minor in range(oldest, oldest + 20)):
            faults.append(f"Requires-Python {facts.requires_python} and the tag {tag}-abi3 have no Python in common")
    return faults
