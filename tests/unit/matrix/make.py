"""Recipes and matrices made in memory, for tests of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.matrix.axes import AbiClass, Arch, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.config import AbiRule, Exclude, Matrix, PathSource, Recipe


def recipe(
    name: str = "ext",
    *rules: tuple[AbiClass, str],
    archs: Sequence[str] = (),
    python: str = "",
) -> Recipe:
    """A recipe whose abi rules are given as (class, specifier); `cpython` for all when none is."""
    folder = Path("/farm") / name
    return Recipe(
        name=name,
        version="1.0",
        summary="",
        folder=folder,
        source=PathSource(folder),
        patches=(),
        abi=tuple(AbiRule(*rule) for rule in rules or [(AbiClass.CPYTHON, "")]),
        cuda="required",
        env={},
        build_requires=(),
        requires=(),
        assume_cuda=False,
        archs=tuple(map(Arch.parse, archs)),
        python=python,
        imports=(name,),
        companions=(),
        libraries={},
        memory_per_job=2**31,
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
    """A matrix of these axes; a torch series is its newest release."""
    return Matrix(
        path=Path("matrix.yaml"),
        torch=tuple(map(Compat.load().resolve_torch, torch)),
        cuda=tuple(map(Cuda.parse, cuda)),
        python=tuple(map(Python.parse, python)),
        archs=tuple(map(Arch.parse, archs)),
        platforms=tuple(platforms),
        extensions=(),
        exclude=tuple(exclude),
        images=(),
        torch_index="",
    )
