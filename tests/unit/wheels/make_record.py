"""Records of wheels, as small as the tests need them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import Source
from builder.matrix.plan import Build
from builder.records import BuildRecord, CacheStatistics, CudaSources, Part, Record, Toolchain
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


def build_for(cell: Cell | str, extension: str = "toy", pythons: Sequence[Python] = (), arch: str = "9.0") -> Build:
    """A build of the class `cpython` for one cell."""
    cell = Cell.parse(cell) if isinstance(cell, str) else cell
    wanted, archs = tuple(pythons) or (cell.python,), tuple(map(Arch.parse, arch.split()))
    return Build(
        extension, "1.0", AbiClass.CPYTHON, cell.torch, cell.cuda, wanted, archs, cell.platform, serves=(cell,)
    )


TOOLCHAIN = Toolchain(
    executor="local",
    python=Python(3, 12),
    packages=("nvidia-cuda-nvcc==13.0.88", "torch==2.11.0"),
    others={Part.PYTHON_VERSION: "3.12.1", Part.CXX: "g++ 12.2.0", Part.NVCC: "13.0.88"},
)


def record(
    toolchain: Toolchain = TOOLCHAIN,
    *,
    source: Source | None = None,
    patches: tuple[Path, ...] = (),
    minor_mismatch: bool = False,
) -> Record:
    """A record of BUILD."""
    changes: dict[str, Any] = {"source": source} if source else {}
    recipe = replace(make.recipe("ops"), patches=patches, env={"WITH_X": "1"}, requires=("numpy",), **changes)
    return Record.of(BUILD, recipe, toolchain, "5" * 64, minor_mismatch=minor_mismatch)


def build_record(
    wheel_record: Record | None = None,
    *,
    provided: frozenset[str] = frozenset(),
    objects: CacheStatistics | None = None,
) -> BuildRecord:
    """What the store keeps beside a wheel with that record."""
    return BuildRecord(
        record=wheel_record or record(),
        provided=provided,
        jobs=2,
        objects=objects,
        cuda=CudaSources(1),
        format=7,
        started=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        seconds=60.4,
    )
