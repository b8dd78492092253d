"""Which wheel of an index fits a machine, and why each other wheel does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.matrix.axes import Arch, Cell, Cuda, Python, Torch
from builder.publish.index.bar import Level
from builder.publish.index.entry import Entry
from builder.wheelfile.compatibility import admits, runs_on

#: manylinux tags with a name instead of a glibc version (PEP 513, 571, 599).
_NAMED = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True)
class Target:
    """The machine that a wheel is for.

    Attributes:
        torch: the torch release.
        cuda: the CUDA of torch.
        python: the Python.
        machine: the processor, such as `x86_64`.
        glibc: the version of glibc, or None if any is accepted.
        gpu: the compute capability of the GPU, or None if any is accepted.

    """

    torch: Torch
    cuda: Cuda
    python: Python
    machine: str
    glibc: tuple[int, int] | None = None
    gpu: Arch | None = None

    @property
    def cell(self) -> Cell:
        """The cell of this target."""
        return Cell(self.torch, self.cuda, self.python)


@dataclass(frozen=True)
class Resolution:
    """The wheels of a project for one target.

    Attributes:
        best: the wheel to install, or None.
        level: what its proofs show in the target's cell: `none`, `static`, `cpu` or `gpu`; empty: not tested there.
        misfits: why each wheel that does not fit does not, by file name; the newest version first.

    """

    best: Entry | None
    level: str
    misfits: dict[str, str]


def resolve(entries: Sequence[Entry], requires: Callable[[Entry], Sequence[str]], target: Target) -> Resolution:
    """Choose a wheel: the newest version, then the one that was tested best in the target's cell.

    `requires` returns the Requires-Dist lines of a wheel; it is called only for wheels that fit otherwise.
    """
    reasons = {entry.filename: misfit(entry, requires, target) for entry in entries}
    fits = [entry for entry in entries if not reasons[entry.filename]]
    best = max(
        fits, key=lambda entry: (Version(entry.version.public), _rank(entry, target), entry.version), default=None
    )
    others = [entry for entry in entries if reasons[entry.filename]]
    others.sort(key=lambda entry: (entry.version, entry.filename), reverse=True)
    misfits = {entry.filename: reasons[entry.filename] for entry in others}
    return Resolution(best, _level(best, target) if best else "", misfits)


def misfit(entry: Entry, requires: Callable[[Entry], Sequence[str]], target: Target) -> str:
    """The first reason why a wheel does not fit a target; empty if the wheel fits."""
    if entry.yanked is not None:
        return f"yanked: {entry.yanked}" if entry.yanked else "yanked"
    tags = parse_wheel_filename(entry.filename)[3]
    suitable = [tag for tag in tags if admits(tag, target.python, target.machine)]
    if not suitable:
        return f"its tag is not for Python {target.python} on {target.machine}"
    if entry.requires_python and not SpecifierSet(entry.requires_python).contains(str(target.python).rstrip("t")):
        return f"it requires Python {entry.requires_python}"
    needed = min((_glibc(tag) for tag in suitable), default=(0, 0))
    if target.glibc and needed > target.glibc:
        return f"it needs glibc {needed[0]}.{needed[1]}; this target has {target.glibc[0]}.{target.glibc[1]}"
    if reason := _cuda_misfit(entry, target.cuda):
        return reason
    if reason := _gpu_misfit(entry, target.gpu):
        return reason
    return _torch_misfit(requires(entry), target.torch)


def _cuda_misfit(entry: Entry, cuda: Cuda) -> str:
    variants = entry.farm.cuda if entry.farm else ()
    if not variants or cuda.variant in variants or f"cu{cuda.major}" in variants:
        return ""
    # A wheel for one CUDA major version, such as one of the stable ABI, says so in its local version.
    if re.fullmatch(rf"(.*\.)?cu{cuda.major}", entry.version.local or ""):
        return ""
    return f"it is for {', '.join(variants)}, not {cuda.variant}"


def _gpu_misfit(entry: Entry, gpu: Arch | None) -> str:
    archs = entry.farm.archs if entry.farm else ()
    if gpu is None or not archs or runs_on(archs, gpu):
        return ""
    return f"it has no code for a GPU of compute capability {gpu.major}.{gpu.minor}, only {', '.join(archs)}"


def _torch_misfit(requires: Sequence[str], torch: Torch) -> str:
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == "torch" and not requirement.specifier.contains(str(torch)):
            return f"it requires {requirement}"
    return ""


def _glibc(tag: Tag) -> tuple[int, int]:
    """The glibc that a tag needs; (0, 0) for a tag without one."""
    if match := re.match(r"manylinux_(\d+)_(\d+)_", tag.platform):
        return int(match[1]), int(match[2])
    return _NAMED.get(tag.platform.partition("_")[0], (0, 0))


def _rank(entry: Entry, target: Target) -> int:
    return [*Level].index(Level(_level(entry, target) or Level.NONE))


def _level(entry: Entry, target: Target) -> str:
    return entry.farm.cells.get(str(target.cell), "") if entry.farm else ""
