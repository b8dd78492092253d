"""What the launchers and the cache's server need to know; `builder.wheels.sccache.configure` finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """The folder of a build's launchers. It has the same name in every container.

    Paths in it reach the keys of objects (nvcc's own path, torch's headers), so a name that is always the same lets
    builds for different Pythons and torches share objects.
    """

    #: The folder.
    root: Path

    @property
    def launch(self) -> Path:
        """gcc, g++, cc, c++, $CC and $CXX: copies of launch.sh; first on PATH."""
        return self.root / "launch"

    @property
    def compilers(self) -> Path:
        """Links to the real compilers, under the same names."""
        return self.root / "compilers"

    @property
    def cuda(self) -> Path:
        """CUDA_HOME of the build: links into the toolkit, but bin/nvcc is a copy of launch.sh."""
        return self.root / "cuda"

    @property
    def toolkit(self) -> Path:
        """Link to the real CUDA toolkit; absent in a build without nvcc."""
        return self.root / "toolkit"

    @property
    def server_nvcc(self) -> Path:
        """The program that sccache's server calls as nvcc."""
        return self.root / "whole" / "nvcc"

    @property
    def site(self) -> Path:
        """Link to the build's site-packages."""
        return self.root / "site"

    @property
    def self_test(self) -> Path:
        """Sources and objects of the cache's self-test."""
        return self.root / "check"


@dataclass(frozen=True)
class CacheSettings:
    """One build's compilers and its compiler cache."""

    #: The folder of the launchers; `Layout` describes it.
    objects: Path
    #: Where the statistics of sccache go, for `builder.wheels.sccache.configure`.
    statistics_dir: Path
    #: The real CUDA toolkit; it may have no nvcc.
    toolkit: Path
    #: The real site-packages.
    site: Path
    #: cc, cxx: the compilers that buildfarm found.
    cc: str
    cxx: str
    #: Where sccache keeps objects.
    cache_dir: Path
    #: Where its server listens. The path may have 107 bytes (unix(7)), and nobody else may write its folder.
    socket: Path
    #: The program.
    sccache: str = "sccache"
    #: recipe_cc, recipe_cxx: CC and CXX of the build, which a recipe may set to different compilers.
    recipe_cc: str = ""
    recipe_cxx: str = ""
    #: Why the compiler cache is turned off, or empty.
    disabled: str = ""
    #: Why objects of this source must not be cached, or empty.
    refused: str = ""
    #: Whether objects of earlier builds may be used.
    reads: bool = True
    #: Names of the variables of the compiler cache that machines share; empty without one.
    shared: Sequence[str] = ()

    @property
    def layout(self) -> Layout:
        """The folder of the launchers."""
        return Layout(self.objects)

    @property
    def refusal_file(self) -> Path:
        """Holds the reason when the compiler cache is not used."""
        return self.statistics_dir / "refused"

    @property
    def unshared_file(self) -> Path:
        """Holds the reason when the shared compiler cache is not used."""
        return self.statistics_dir / "unshared"

    def without_shared(self, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables without those of the shared compiler cache, among which are its passwords."""
        return {name: value for name, value in variables.items() if name not in self.shared}

    @property
    def host_launcher(self) -> Path:
        """The launcher of the build's C++ compiler."""
        return self.layout.launch / Path(self.recipe_cxx).name

    @property
    def host_compiler(self) -> Path:
        """The real program behind `host_launcher`."""
        return self.layout.compilers / Path(self.recipe_cxx).name
