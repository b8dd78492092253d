"""What the atlas says about one wheel, as plain data: the claims, what the file proves, and the failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.matrix.axes import Arch
from builder.proof import Check, Verdict
from builder.proofs.claimed_cells import provided_by_torch
from builder.proofs.static.metadata import read_requirement
from builder.proofs.static.tags import system_libraries
from builder.proofs.verify.judge import WheelVerdict
from builder.publish.proof_lines import remarks
from builder.wheelfile.compatibility import codes_for, is_driver_library
from builder.wheelfile.facts import WheelFacts

#: The GPUs of computers with an x86_64 processor, by compute capability.
GPUS = {
    "7.0": "V100",
    "7.5": "T4, RTX 20",
    "8.0": "A100",
    "8.6": "A10, RTX 30",
    "8.9": "L4, RTX 40",
    "9.0": "H100",
    "10.0": "B200",
    "10.3": "B300",
    "12.0": "RTX 50",
}
#: What the check `tags` says about a library that another package or the system must have.
_FROM_ELSEWHERE = re.compile(r" needs? .*, (?:which neither torch nor \S+ provides$|which this cell does not provide)")
#: Checks with a sentence for each fault; those of other checks belong together.
_LISTS = (Check.TAGS, Check.LOADER)
#: Characters of a sentence to keep.
_LONGEST = 300


def entry_of(verdict: WheelVerdict, day: str, provided: frozenset[str]) -> dict[str, Any]:
    """The data of a wheel that was read on this day; `provided` are the libraries of the torch that it claims."""
    facts, window = verdict.facts, _evidence(verdict, Check.WINDOW)
    platforms = {tag.platform for tag in parse_wheel_filename(facts.filename)[3]}
    return {
        "wheel": facts.filename,
        "version": facts.version,
        "sha256": facts.sha256,
        "size": facts.size,
        "day": day,
        "requires": _torch_lines(facts),
        "allowed": window.get("allowed", []),
        "links": window.get("links", []),
        "does_not_link": window.get("does_not_link", []),
        "tags": sorted(platforms),
        "glibc": _newest(facts, "GLIBC_"),
        "libstdcxx": _newest(facts, "GLIBCXX_"),
        "elsewhere": _elsewhere(facts, provided),
        "libraries": len(facts.libraries),
        "gpus": _gpus(facts),
        "sizes": dict(_evidence(verdict, Check.GPUS).get("sizes", {})),
        "failed": list(_says(verdict, Verdict.FAILED)),
        "not_run": list(_says(verdict, Verdict.NOT_RUN)),
        "remarks": [{"check": str(one.check), "says": text} for one in verdict.proofs for text in remarks(one)],
    }


def _says(verdict: WheelVerdict, wanted: Verdict) -> Iterator[dict[str, str]]:
    """What the checks with this verdict say. A library from elsewhere is no failure; `_elsewhere` lists it."""
    for proof in verdict.proofs:
        parts = [part for part in proof.reason.split("; ") if not _FROM_ELSEWHERE.search(part)]
        if proof.verdict is wanted and parts:
            several = parts if proof.check in _LISTS else ["; ".join(parts)]
            yield from ({"check": str(proof.check), "says": one[:_LONGEST]} for one in dict.fromkeys(several))


def _elsewhere(facts: WheelFacts, provided: frozenset[str]) -> list[str]:
    """The needed libraries that neither the wheel, nor torch with its NVIDIA packages, nor a manylinux system has."""
    inside = {name for one in facts.libraries for name in (one.basename, one.soname)}
    needed = {name for one in facts.libraries for name in one.needed if not is_driver_library(name)}
    return sorted(needed - inside - provided - provided_by_torch(facts) - system_libraries("x86_64"))


def _newest(facts: WheelFacts, prefix: str) -> list[int]:
    """The newest version of a system library's symbols that the libraries need; empty for none."""
    names = (name for one in facts.libraries for names in one.versions.values() for name in names)
    found = (name.removeprefix(prefix).split(".") for name in names if name.startswith(prefix))
    return max(([*map(int, parts)] for parts in found if all(map(str.isdecimal, parts))), default=[])


def _evidence(verdict: WheelVerdict, check: Check) -> dict[str, Any]:
    return next((proof.evidence for proof in verdict.proofs if proof.check is check), {})


def _torch_lines(facts: WheelFacts) -> list[str]:
    """The requirements of torch in METADATA, as they are there."""
    read = ((line, read_requirement(line)) for line in facts.requires_dist)
    return [line for line, one in read if one and canonicalize_name(one.name) == "torch"]


def _gpus(facts: WheelFacts) -> dict[str, list[int]]:
    """For each compute capability, of the libraries with GPU code: how many have SASS, PTX, or neither for it."""
    coded = [one for one in facts.libraries if (one.sass or one.ptx) and not one.foreign]
    found = {}
    for name in GPUS if coded else ():
        arch = Arch.parse(name)
        native = sum(bool(codes_for(one.sass, arch)) for one in coded)
        ptx = sum(bool(codes_for(one.ptx, arch)) and not codes_for(one.sass, arch) for one in coded)
        found[name] = [native, ptx, len(coded) - native - ptx]
    return found
