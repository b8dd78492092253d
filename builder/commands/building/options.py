"""The options of one `buildfarm build`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from builder.commands.distributed.options import RemoteOptions
from builder.matrix.axes import Arch
from builder.matrix.config import Selection


@dataclass(frozen=True)
class BuildOptions:
    """The options of one `buildfarm build`.

    Attributes:
        matrix: the file matrix.yaml.
        select: which cells and extensions.
        archs: GPU architectures instead of the ones in the matrix and the recipes; empty: no change.
        executor: `auto`, `local` or `docker`.
        image: base image instead of the ones in the matrix, or None.
        jobs: number of parallel compilers, or None for a number that fits cores and memory.
        minor_mismatch: whether a CUDA toolkit of the same major and another minor is accepted.
        compiler_cache: whether compilers run through sccache.
        pull: whether base images that are not on this machine may be pulled.
        python_downloads: whether uv may download Pythons that this machine lacks.
        recheck: whether every check runs again, also those that are decided.
        store: its folder, or None for the user's default store.
        dist: the folder for wheels, report.json and the index.
        summary: a file that gets the report of the run as Markdown, or None.
        remote: the workers that build and test, or None for this machine.

    """

    matrix: Path
    select: Selection = field(default_factory=Selection)
    archs: tuple[Arch, ...] = ()
    executor: str = "auto"
    image: str | None = None
    jobs: int | None = None
    minor_mismatch: bool = False
    compiler_cache: bool = True
    pull: bool = True
    python_downloads: bool = True
    recheck: bool = False
    store: Path | None = None
    dist: Path = Path("dist")
    summary: Path | None = None
    remote: RemoteOptions | None = None
