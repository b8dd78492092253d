"""What the launchers and the cache's server need to know; `builder.wheels.sccache.configure` finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class Layout:
    """The folder of a build's launchers. It has the same name in every container.

    Paths in it reach the keys of objects (nvcc's own path, torch's headers), so a name that is always the same lets
    builds for different Pythons and torches share objects.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.launch = root / "launch"  # gcc, g++, cc, c++, $CC and $CXX: copies of launch.sh; first on PATH
        self.compilers = root / "compilers"  # links to the real compilers, under the same names
        self.cuda = root / "cuda"  # CUDA_HOME of the build: links into the toolkit, but bin/nvcc is a copy of launch.sh
        self.toolkit = root / "toolkit"  # link to the real CUDA toolkit; absent in a build without nvcc
        self.server_nvcc = root / "whole" / "nvcc"  # the program that sccache's server calls as nvcc
        self.site = root / "site"  # link to the build's site-packages
        self.self_test = root / "check"  # sources and objects of the cache's self-test


@dataclass(frozen=True)
class CacheSettings:
    """One build's compilers and its compiler cache."""

    objects: Path  # the folder of the launchers; `Layout` describes it
    statistics_dir: Path  # where the statistics of sccache go, for `builder.wheels.sccache.configure`
    toolkit: Path  # the real CUDA toolkit; it may have no nvcc
    site: Path  # the real site-packages
    cc: str  # cc, cxx: the compilers that buildfarm found
    cxx: str
    cache_dir: Path  # where sccache keeps objects
    #: Where its server listens. The path may have 107 bytes (unix(7)), and nobody else may write its folder.
    socket: Path
    sccache: str = "sccache"  # the program
    #: recipe_cc, recipe_cxx: CC and CXX of the build, which a recipe may set to different compilers.
    recipe_cc: str = ""
    recipe_cxx: str = ""
    disabled: str = ""  # why the compiler cache is turned off, or empty
    refused: str = ""  # why objects of this source must not be cached, or empty
    reads: bool = True  # whether objects of earlier builds may be used
    shared: Sequence[str] = ()  # names of the variables of the compiler cache that machines share; empty without one

    @property
    def layout(self) -> Layout:
        """The folder of the launchers."""
        return Layout(self.objects)

    @property
    def refusal_file(self) -> Path:
        """Holds the reason when the compiler cache is not used."""
        return self.statistics_dir / "refused"

    def without_shared(self, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables without those of the shared compiler cache, among which are its passwords."""
        return {name: value for name, value in variables.items() if name not in self.shared}
