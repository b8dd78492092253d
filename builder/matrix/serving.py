"""Which cells one extension can serve, and which share one compile: the rules of ABI classes and archs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from packaging.specifiers import SpecifierSet

from builder.matrix.axes import STABLE_FLOOR, AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat, WhyNot
from builder.matrix.config import Recipe

#: Cells with the same key are served by one build. Platform, then what the ABI class ties the binary to.
GroupKey = tuple[str, AbiClass, str, Cuda | int, Python | None]

_LIMITED_SINCE = Python(3, 10)  # the Py_LIMITED_API that torch >= 2.10 itself sets; older ones only allow 3.9
_COMPILE_WITH = (Python(3, 12), Python(3, 11), Python(3, 13), Python(3, 10))  # best first, then any other


class Serving:
    """One recipe's rules; answers are remembered, for a plan asks about few values many times."""

    def __init__(self, recipe: Recipe, matrix_archs: Sequence[Arch], compat: Compat) -> None:
        self.recipe = recipe
        self._compat = compat
        self._explicit = _merged([*(recipe.archs or matrix_archs)])
        self._rules = [(SpecifierSet(rule.specifier, prereleases=True), rule.abi) for rule in recipe.abi]
        self._pythons = SpecifierSet(recipe.python, prereleases=True)
        self._abis: dict[Torch, AbiClass | None] = {}
        self._answers: dict[tuple[AbiClass | None, Python], WhyNot | None] = {}
        self._arch_answers: dict[Cuda, WhyNot | None] = {}
        self._archs: dict[tuple[Cuda, Platform, frozenset[tuple[Torch, Cuda]]], tuple[Arch, ...]] = {}

    def why_not(self, cell: Cell) -> WhyNot | None:
        """None when the extension can be built for the cell, else the reason."""
        abi = self._abi(cell.torch)
        if abi is None:
            takes = ", ".join(rule.specifier for rule in self.recipe.abi)
            reason = f"{self.recipe.name} is not for torch {cell.torch.series}: its abi rules take {takes}"
            return WhyNot("no-abi-rule-for-torch", reason)
        if abi is AbiClass.STABLE and cell.torch < STABLE_FLOOR:
            reason = (
                f"{self.recipe.name} claims LibTorch's stable ABI for torch {cell.torch.series},"
                f" but it starts with {STABLE_FLOOR.series}"
            )
            return WhyNot("stable-abi-needs-newer-torch", reason)
        key = (abi, cell.python)
        if key not in self._answers:
            self._answers[key] = self._ask_python(abi, cell.python)
        if cell.cuda not in self._arch_answers:
            self._arch_answers[cell.cuda] = self._ask_archs(cell.cuda)
        return self._answers[key] or self._arch_answers[cell.cuda]

    def _abi(self, torch: Torch) -> AbiClass | None:
        """The class of the first rule that takes the release."""
        if torch not in self._abis:
            self._abis[torch] = next((abi for takes, abi in self._rules if takes.contains(str(torch))), None)
        return self._abis[torch]

    def _ask_python(self, abi: AbiClass, python: Python) -> WhyNot | None:
        name = self.recipe.name
        if not self._pythons.contains(f"{python.major}.{python.minor}"):
            reason = f"{name} is not for Python {python}: its extension.yaml takes {self.recipe.python}"
            return WhyNot("python-not-supported", reason)
        if abi is AbiClass.CPYTHON:
            return None
        if python.free_threaded:
            reason = f"free-threaded Python {python} cannot install abi3 wheels, and {name} is built as {abi}"
            return WhyNot("free-threaded-needs-own-build", reason)
        if python < _LIMITED_SINCE:
            reason = f"{abi} wheels start with Python {_LIMITED_SINCE}, and {name} is built as {abi}"
            return WhyNot("abi3-needs-newer-python", reason)
        return None

    def _ask_archs(self, cuda: Cuda) -> WhyNot | None:
        for arch in self._explicit:
            if why := self._compat.why_not_arch(cuda, arch):
                of_recipe = f" ({self.recipe.name} asks for it)" if self.recipe.archs else ""
                return WhyNot(why.code, why.reason + of_recipe)
        return None

    def group(self, cell: Cell) -> GroupKey:
        """What the binary for a cell is tied to; call it only for cells that can be served."""
        abi = self._abi(cell.torch)
        match abi:
            case AbiClass.STABLE:
                return (cell.platform, abi, "", cell.cuda.major, None)
            case AbiClass.ABI3:
                return (cell.platform, abi, cell.torch.series, cell.cuda, None)
            case _:
                return (cell.platform, AbiClass.CPYTHON, cell.torch.series, cell.cuda, cell.python)

    def compiled_for(self, cells: Sequence[Cell]) -> tuple[Torch, Cuda]:
        """The torch and the toolkit of a group's build: its oldest torch, and the lowest CUDA of that torch.

        Not the lowest CUDA of all: a newer torch may be the only one that has it.
        """
        oldest = min(cells)
        return oldest.torch, oldest.cuda

    def archs(self, cells: Sequence[Cell], cuda: Cuda) -> tuple[Arch, ...]:
        """The architectures of a group's build.

        Those asked for, or torch's official ones of all the cells as far as the toolkit knows them. Where it
        is too old for some, the newest also carries PTX, so that a driver can translate it for those GPUs.
        """
        if self._explicit:
            return self._explicit
        key = (cuda, cells[0].platform, frozenset((cell.torch, cell.cuda) for cell in cells))
        if key not in self._archs:
            self._archs[key] = self._official(*key)
        return self._archs[key]

    def _official(self, cuda: Cuda, platform: Platform, wheels: frozenset[tuple[Torch, Cuda]]) -> tuple[Arch, ...]:
        wanted = {arch for wheel in wheels for arch in self._compat.official_archs(*wheel, platform)}
        known = [arch for arch in _merged(wanted) if not self._compat.why_not_arch(cuda, arch)]
        if known and max(wanted).number > known[-1].number:
            known[-1] = replace(known[-1], ptx=True)
        return tuple(known)

    def pythons(self, cells: Sequence[Cell], torch: Torch) -> tuple[Python, ...]:
        """The Pythons a group may be compiled with, best first: those it serves and its torch has."""
        served = {c.python for c in cells if not self._compat.why_not_python(torch, c.python)}
        best = [python for python in _COMPILE_WITH if python in served]
        return (*best, *sorted(served.difference(best)))


def _merged(archs: Collection[Arch]) -> tuple[Arch, ...]:
    """Sorted, and 9.0 beside 9.0+PTX as one: the latter means both."""
    with_ptx = {arch for arch in archs if arch.ptx}
    plain = {arch for arch in archs if replace(arch, ptx=True) not in with_ptx}
    return tuple(sorted(with_ptx | plain))
