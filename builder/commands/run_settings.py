"""The options of a run that its executors need, on this machine and on workers."""

from __future__ import annotations

from dataclasses import dataclass

from builder.matrix.config import Matrix


@dataclass(frozen=True)
class RunSettings:
    """The options of a run that change what a worker does."""

    #: Its images, registries and torch index; its path is the client's.
    matrix: Matrix
    #: `auto`, `local` or `docker`.
    executor: str = "auto"
    #: minor_mismatch, compiler_cache, pull, python_downloads: as in `BuildOptions`.
    minor_mismatch: bool = False
    compiler_cache: bool = True
    pull: bool = True
    python_downloads: bool = True
