"""Records of wheels, as small as the tests need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import Source
from builder.matrix.plan import Build
from builder.wheels.build import Toolchain
from builder.wheels.record import Record
from tests.unit.matrix import make

BUILD = Build(
    extension="ops",
    version="1.0",
    abi=AbiClass.CPYTHON,
    torch=Torch(2, 11, 0),
    cuda=Cuda(13, 0),
    pythons=(Python(3, 12),),
    archs=(Arch(8, 0), Arch(9, 0, ptx=True)),
    platform=Platform.LINUX_X86_64,
    serves=(Cell(Torch(2, 11, 0), Cuda(13, 0), Python(3, 12)),),
)
PARTS = {
    "c++": "g++ 12.2.0",
    "nvcc": "13.0.88",
    "packages": "nvidia-cuda-nvcc==13.0.88 torch==2.11.0",
    "python": "3.12.1",
}


def record(
    parts: Mapping[str, str] = MappingProxyType({}),
    *,
    source: Source | None = None,
    patches: tuple[Path, ...] = (),
    stand_in: bool = False,
) -> Record:
    """A record of BUILD; `parts` are of the toolchain, beyond PARTS."""
    changes: dict[str, Any] = {"source": source} if source else {}
    recipe = replace(make.recipe("ops"), patches=patches, env={"WITH_X": "1"}, requires=("numpy",), **changes)
    toolchain = Toolchain("local", Python(3, 12), tuple(sorted({**PARTS, **parts}.items())))
    return Record.of(BUILD, recipe, toolchain, "5" * 64, stand_in=stand_in)
