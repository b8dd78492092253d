"""The cells that a wheel claims, by its tags, its METADATA, its version and its libraries."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.matrix.axes import STABLE_FLOOR, AbiClass, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat, and_list
from builder.matrix.local_version import LocalVersion, read_local
from builder.proofs.static.claim import WheelClaim
from builder.proofs.static.linkage import is_python, is_torch_cxx
from builder.proofs.static.metadata import counts_in, read_requirement, requires_admit
from builder.wheelfile.compatibility import admits, oldest_python, oldest_torch, shims
from builder.wheelfile.facts import TORCH_LIBRARY, Library, WheelFacts

_LOCAL = re.compile(r"\+[\w.]+")
#: Libraries of the NVIDIA packages that torch requires.
_NVIDIA_LIBRARY = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn(?:_\w+)?|cufft|cufftw|cufile|cupti|curand|cusolver|cusolverMg|cusparse|"
    r"cusparseLt|nccl|nvJitLink|nvrtc|nvshmem_host|nvToolsExt)\.so\.[\d.]+"
)


class WhyNotClaimed(NamedTuple):
    """Why a wheel does not claim a cell: `torch`, `CUDA` or `Python`, the value in the cell, and the reason."""

    axis: str
    value: str
    reason: str


@dataclass(frozen=True)
class ClaimedCells:
    """The cells that a wheel claims, sorted, and a sentence for each reason why it does not claim the others."""

    cells: tuple[Cell, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class StatedTorch:
    """The torch that a wheel is for, as its version and the Requires-Dist lines of its METADATA say."""

    version: str
    requires_dist: Sequence[str]

    def why_not(self, cell: Cell) -> str:
        """The first reason why the torch of a cell is excluded; empty if it is not."""
        return self.why_not_release(cell) or self.why_not_build(cell)

    def why_not_release(self, cell: Cell) -> str:
        """Why the release of torch of a cell is excluded, whatever its CUDA is; empty if it is not."""
        for one in self._requirements(cell):
            # A pin such as ==2.11.0+cu130 admits this release for one CUDA only, which `why_not_build` says.
            if not SpecifierSet(_LOCAL.sub("", str(one.specifier))).contains(str(cell.torch)):
                return f"METADATA requires torch{one.specifier}"
        if self.local.series and cell.torch.series not in self.local.series:
            return f"the version {self.version} names torch {' or '.join(self.local.series)}"
        return ""

    def why_not_build(self, cell: Cell) -> str:
        """Why the build of torch for the CUDA of a cell is excluded; empty if it is not."""
        build = f"{cell.torch}+{cell.cuda.variant}"
        for one in self._requirements(cell):
            if not (one.specifier.contains(str(cell.torch)) or one.specifier.contains(build)):
                return f"METADATA requires torch{one.specifier}"
        return ""

    @property
    def is_required(self) -> bool:
        """Whether METADATA has a requirement of torch, not only for an extra."""
        return any(one.marker is None or "extra" not in str(one.marker) for one in self._lines)

    def _requirements(self, cell: Cell) -> Iterator[Requirement]:
        """The requirements of torch that count in the cell; the check `metadata` reports unreadable ones."""
        return (one for one in self._lines if counts_in(one, cell))

    @cached_property
    def _lines(self) -> tuple[Requirement, ...]:
        readable = filter(None, map(read_requirement, self.requires_dist))
        return tuple(one for one in readable if canonicalize_name(one.name) == "torch")

    @cached_property
    def local(self) -> LocalVersion:
        """What the local version says; nothing without one."""
        try:
            return read_local(Version(self.version).local or "")
        except ValueError:  # InvalidVersion or a too long number; reported by the check `metadata`
            return LocalVersion()


@dataclass(frozen=True)
class CellClaims:
    """What a wheel says about the cells that it is for."""

    facts: WheelFacts

    @cached_property
    def stated(self) -> StatedTorch:
        """What the wheel says about torch outside of its libraries."""
        return StatedTorch(self.facts.version, self.facts.requires_dist)

    def why_not(self, cell: Cell) -> WhyNotClaimed | None:
        """The first reason why the wheel does not claim the cell; None if it does."""
        reason = self.stated.why_not_release(cell)
        if not reason and self.floor > cell.torch:
            reason = f"the libraries call functions that torch has since {self.floor.series}"
        if reason:
            return WhyNotClaimed("torch", cell.torch.series, reason)
        if reason := self._why_not_cuda(cell):
            return WhyNotClaimed("CUDA", str(cell.cuda), reason)
        if not self.admits_python(cell.python, cell.platform):
            tags = parse_wheel_filename(self.facts.filename)[3]
            reason = f"the tag is {and_list(sorted({f'{tag.interpreter}-{tag.abi}' for tag in tags}))}"
        elif not requires_admit(self.facts.requires_python, cell.python):
            reason = f"METADATA requires Python {self.facts.requires_python}"
        return WhyNotClaimed("Python", str(cell.python), reason) if reason else None

    def _why_not_cuda(self, cell: Cell) -> str:
        if reason := self.stated.why_not_build(cell):
            return reason
        if self.stated.local.without_cuda:
            return f"the version {self.facts.version} names a build without CUDA, and every cell has CUDA"
        if self.variant and self.variant not in (cell.cuda.variant, f"cu{cell.cuda.major}"):
            return f"the version {self.facts.version} names {self.variant}"
        if self.runtimes and cell.cuda.major not in self.runtimes:
            return f"the libraries need the runtime of CUDA {and_list(sorted(self.runtimes))}"
        return ""

    def admits_python(self, python: Python, platform: Platform) -> bool:
        """Whether a tag of the file name suits this Python on this platform."""
        return any(admits(tag, python, platform.machine) for tag in parse_wheel_filename(self.facts.filename)[3])

    @property
    def variant(self) -> str:
        """The CUDA that the version names, such as `cu121` or `cu13`; empty without one."""
        return self.stated.local.cuda

    @cached_property
    def floor(self) -> Torch:
        """The oldest torch with every C function that the libraries call; 0.0.0 if they call none."""
        called = oldest_torch(symbol for library in self.facts.libraries for symbol in library.undefined)
        return called or Torch(0, 0, 0)

    @cached_property
    def runtimes(self) -> frozenset[int]:
        """The CUDA major versions whose runtime the libraries need; several for one library of each."""
        return frozenset[int]().union(*(library.cuda_runtimes for library in self.facts.libraries))


def claimed_cells(facts: WheelFacts, compat: Compat, platform: Platform) -> ClaimedCells:
    """The cells of a platform that a wheel claims: for each torch series, the newest release that it admits."""
    claims = CellClaims(facts)
    newest: dict[tuple[str, object, object], Cell] = {}
    reasons: dict[tuple[str, str], set[str]] = {}
    every = (
        Cell(torch, cuda, python, platform)
        for torch in compat.torches  # the oldest first
        for cuda in sorted(compat.torch(torch).variants)
        for python in compat.pythons
        if compat.why_not(torch, cuda, python, platform) is None
    )
    for cell in every:
        if why := claims.why_not(cell):
            reasons.setdefault((why.axis, why.reason), set()).add(why.value)
        else:
            newest[cell.torch.series, cell.cuda, cell.python] = cell  # the releases come in order
    cells = tuple(sorted(newest.values()))
    axes = {  # all values in their order, and those that the wheel claims
        "torch": (list(dict.fromkeys(torch.series for torch in compat.torches)), {cell.torch.series for cell in cells}),
        "CUDA": (list(map(str, compat.cudas)), {str(cell.cuda) for cell in cells}),
        "Python": (list(map(str, compat.pythons)), {str(cell.python) for cell in cells}),
    }
    others = [
        f"{axis} {range_text(axes[axis][0], excluded)}: {reason}"
        for (axis, reason), values in reasons.items()
        if (excluded := values - axes[axis][1])
    ]
    return ClaimedCells(cells, tuple(others))


def range_text(order: Sequence[str], values: Collection[str]) -> str:
    """The values, in their order, as `2.0 to 2.10 and 2.12`: at least three in a row become a range."""
    runs: list[list[str]] = []
    for before, value in zip(["", *order], order, strict=False):
        if value in values:
            if runs and runs[-1][-1] == before:
                runs[-1].append(value)
            else:
                runs.append([value])
    return and_list(part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run))


def uses_torch(facts: WheelFacts) -> bool:
    """Whether a library links torch or calls a function of torch, or METADATA requires torch."""
    return CellClaims(facts).stated.is_required or any(map(links_torch, facts.libraries))


def links_torch(library: Library) -> bool:
    """Whether a library links torch or calls a function of torch."""
    return library.needs_torch or any(is_torch_cxx(symbol) or symbol in shims() for symbol in library.undefined)


def foreign_claim(facts: WheelFacts, cells: Sequence[Cell], *, cuda_required: bool = False) -> WheelClaim:
    """The claim of a wheel of others; it must contain GPU code if its version names a CUDA, or `cuda_required`."""
    return WheelClaim(
        abi=abi_class(facts),
        torch=min((cell.torch for cell in cells), default=STABLE_FLOOR),
        cuda=min((cell.cuda for cell in cells), default=Cuda(0, 0)),
        archs=(),
        cuda_required=bool(CellClaims(facts).variant) or cuda_required,
        local="",
        requires=(),
        cells=tuple(sorted(cells)),
        foreign=True,
        uses_torch=uses_torch(facts),
    )


def abi_class(facts: WheelFacts) -> AbiClass:
    """The class that the tags and the symbols of the libraries show."""
    symbols = {symbol for library in facts.libraries for symbol in library.undefined}
    any_python = any(oldest_python(tag) for line in facts.tags for tag in parse_tag(line))
    if any_python or not any(map(is_python, symbols)):
        if not symbols.isdisjoint(shims()) and not any(map(is_torch_cxx, symbols)):
            return AbiClass.STABLE
        if any_python:
            return AbiClass.ABI3
    return AbiClass.CPYTHON


def provided_by_torch(facts: WheelFacts) -> frozenset[str]:
    """The needed libraries that torch and its NVIDIA packages have by their names; `linkage` reads those of a cell."""
    needed = {name for library in facts.libraries for name in library.needed}
    return frozenset(name for name in needed if TORCH_LIBRARY.fullmatch(name) or _NVIDIA_LIBRARY.fullmatch(name))
