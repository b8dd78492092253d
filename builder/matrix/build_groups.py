"""Which cells a recipe can serve, and which cells share one build: the rules of ABI classes and GPU architectures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from packaging.specifiers import SpecifierSet

from builder.matrix.axes import STABLE_FLOOR, AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat, WhyNot
from builder.matrix.config import Recipe

#: One build serves all cells with the same key: the platform, and what a binary of the ABI class depends on.
GroupKey = tuple[str, AbiClass, str, Cuda | int, Python | None]

#: Oldest Python of abi3 wheels: the Py_LIMITED_API that torch >= 2.10 itself sets.
_LIMITED_SINCE = Python(3, 10)

#: Pythons to compile with if a binary does not depend on one, the preferred one first.
_COMPILE_WITH = (Python(3, 12), Python(3, 11), Python(3, 13), Python(3, 10))


class RecipeRules:
    """The rules of one recipe. Answers are cached, because a plan asks for the same few values many times."""

    def __init__(self, recipe: Recipe, matrix_archs: Sequence[Arch], compat: Compat) -> None:
        self.recipe = recipe
        self._compat = compat
        self._explicit = _merged([*(recipe.archs or matrix_archs)])
        self._pythons = SpecifierSet(recipe.python, prereleases=True)
        self._abis: dict[Torch, AbiClass | None] = {}
        self._python_reasons: dict[tuple[AbiClass | None, Python], WhyNot | None] = {}
        self._arch_reasons: dict[Cuda, WhyNot | None] = {}
        self._archs: dict[tuple[Cuda, Platform, frozenset[tuple[Torch, Cuda]]], tuple[Arch, ...]] = {}

    def why_not(self, cell: Cell) -> WhyNot | None:
        """Return the reason why the recipe cannot serve the cell, or None if it can."""
        abi = self._abi(cell.torch)
        if abi is None:
            takes = ", ".join(rule.specifier for rule in self.recipe.abi)
            reason = f"{self.recipe.name} is not for torch {cell.torch.series}: its abi rules take {takes}"
            return WhyNot("no-abi-rule-for-torch", reason)
        if abi is AbiClass.STABLE and cell.torch < STABLE_FLOOR:
            reason = (
                f"{self.recipe.name} claims LibTorch's stable ABI for torch {cell.torch.series},"
                f" but torch has this ABI only since {STABLE_FLOOR.series}"
            )
            return WhyNot("stable-abi-needs-newer-torch", reason)
        key = (abi, cell.python)
        if key not in self._python_reasons:
            self._python_reasons[key] = self._why_not_python(abi, cell.python)
        if cell.cuda not in self._arch_reasons:
            self._arch_reasons[cell.cuda] = self._why_not_archs(cell.cuda)
        return self._python_reasons[key] or self._arch_reasons[cell.cuda]

    def _abi(self, torch: Torch) -> AbiClass | None:
        """Return the class of the first rule that contains the release, or None."""
        if torch not in self._abis:
            self._abis[torch] = self.recipe.abi_of(torch)
        return self._abis[torch]

    def _why_not_python(self, abi: AbiClass, python: Python) -> WhyNot | None:
        name = self.recipe.name
        if not self._pythons.contains(f"{python.major}.{python.minor}"):
            reason = f"{name} is not for Python {python}: its extension.yaml takes {self.recipe.python}"
            return WhyNot("python-not-supported", reason)
        if abi is AbiClass.CPYTHON:
            return None
        if python.free_threaded:
            reason = (
                f"{name} is built as {abi}, so its wheel has an abi3 tag. Free-threaded Python {python} cannot install "
                "it. Use `abi: cpython`"
            )
            return WhyNot("free-threaded-needs-own-build", reason)
        if python < _LIMITED_SINCE:
            reason = f"{name} is built as {abi}, which needs Python {_LIMITED_SINCE} or newer"
            return WhyNot("abi3-needs-newer-python", reason)
        return None

    def _why_not_archs(self, cuda: Cuda) -> WhyNot | None:
        for arch in self._explicit:
            if why := self._compat.why_not_arch(cuda, arch):
                of_recipe = f" (required by the recipe of {self.recipe.name})" if self.recipe.archs else ""
                return WhyNot(why.code, why.reason + of_recipe)
        return None

    def group_key(self, cell: Cell) -> GroupKey:
        """Return what a binary for the cell depends on. Call this only for cells that the recipe can serve."""
        abi = self._abi(cell.torch)
        match abi:
            case AbiClass.STABLE:
                return (cell.platform, abi, "", cell.cuda.major, None)
            case AbiClass.ABI3:
                return (cell.platform, abi, cell.torch.series, cell.cuda, None)
            case _:
                return (cell.platform, AbiClass.CPYTHON, cell.torch.series, cell.cuda, cell.python)

    def compiled_for(self, cells: Sequence[Cell]) -> tuple[Torch, Cuda]:
        """Return the torch and the CUDA of a group's build: the oldest torch, and the oldest CUDA of that torch.

        The oldest CUDA of all cells would be wrong: perhaps only a newer torch has it.
        """
        oldest = min(cells)
        return oldest.torch, oldest.cuda

    def archs(self, cells: Sequence[Cell], cuda: Cuda) -> tuple[Arch, ...]:
        """Return the GPU architectures of a group's build.

        These are the architectures of the recipe or of the matrix. If neither names any, they are torch's own
        architectures of all the cells, without those that the toolkit does not know. If the toolkit is too old for the
        newest GPUs, the last architecture gets PTX, which the driver translates for those GPUs.
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
        """Return the Pythons of a group that the build's torch has wheels for, the preferred one first."""
        usable = {c.python for c in cells if not self._compat.why_not_python(torch, c.python)}
        preferred = [python for python in _COMPILE_WITH if python in usable]
        return (*preferred, *sorted(usable.difference(preferred)))


def _merged(archs: Collection[Arch]) -> tuple[Arch, ...]:
    """Return the architectures sorted, without 9.0 if 9.0+PTX is among them: the latter includes the former."""
    with_ptx = {arch for arch in archs if arch.ptx}
    plain = {arch for arch in archs if replace(arch, ptx=True) not in with_ptx}
    return tuple(sorted(with_ptx | plain))
