"""Make recipes and matrices in memory, for tests of the plan."""

from collections.abc import Sequence
from pathlib import Path

from builder.matrix.axes import AbiClass, Arch, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.config import AbiRule, Exclude, Matrix, PathSource, Recipe


def recipe(
    name: str = "ext",
    *rules: tuple[AbiClass, str] | tuple[AbiClass, str, bool],
    archs: Sequence[str] = (),
    python: str = "",
) -> Recipe:
    """Return a recipe with these ABI rules, each (class, specifier, abi3t); without, `cpython` for every torch."""
    folder = Path("/farm") / name
    return Recipe(
        name=name,
        version="1.0",
        folder=folder,
        source=PathSource(folder),
        abi=tuple(AbiRule(*rule) for rule in rules or [(AbiClass.CPYTHON, "")]),
        archs=tuple(map(Arch.parse, archs)),
        python=python,
        imports=(name,),
    )


def matrix(
    torch: Sequence[str],
    cuda: Sequence[str],
    python: Sequence[str],
    *,
    archs: Sequence[str] = (),
    platforms: Sequence[Platform] = (Platform.LINUX_X86_64,),
    exclude: Sequence[Exclude] = (),
) -> Matrix:
    """Return a matrix of these axes; a torch series means its newest release."""
    return Matrix(
        path=Path("matrix.yaml"),
        torch=tuple(map(Compat.load().resolve_torch, torch)),
        cuda=tuple(map(Cuda.parse, cuda)),
        python=tuple(map(Python.parse, python)),
        archs=tuple(map(Arch.parse, archs)),
        platforms=tuple(platforms),
        exclude=tuple(exclude),
        torch_index="",
    )
