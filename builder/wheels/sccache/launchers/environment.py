"""What the launchers and the cache's server need to know: variables that `builder.wheels.sccache.configure` sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The variable that names the variables of the shared compiler cache, with spaces between them.
SHARED = "BUILDFARM_SHARED_CACHE"


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

    #: Where the launchers are.
    layout: Layout
    #: Where sccache's statistics go, for `builder.wheels.sccache.configure`.
    statistics_dir: Path
    #: The real CUDA toolkit; it may have no nvcc.
    toolkit: Path
    #: The real site-packages.
    site: Path
    #: cc, cxx: the compilers that buildfarm found.
    cc: str
    cxx: str
    #: recipe_cc, recipe_cxx: CC and CXX of the build, which a recipe may set to different compilers.
    recipe_cc: str
    recipe_cxx: str
    #: The program.
    sccache: str
    #: Where sccache keeps objects.
    cache_dir: Path
    #: Where its server listens.
    socket: Path
    #: Why the compiler cache is turned off, or empty.
    disabled: str
    #: Why objects of this source must not be cached, or empty.
    refused: str
    #: Whether objects of earlier builds may be used.
    reads: bool
    #: Names of the variables of the compiler cache that machines share; empty without one.
    shared: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> CacheSettings:
        """Read the variables; raises KeyError when one is missing."""
        return cls(
            layout=Layout(Path(variables["BUILDFARM_OBJECTS"])),
            statistics_dir=Path(variables["BUILDFARM_STATISTICS_DIR"]),
            toolkit=Path(variables["BUILDFARM_TOOLKIT"]),
            site=Path(variables["BUILDFARM_SITE"]),
            cc=variables["BUILDFARM_CC"],
            cxx=variables["BUILDFARM_CXX"],
            recipe_cc=variables["CC"],
            recipe_cxx=variables["CXX"],
            sccache=variables.get("BUILDFARM_SCCACHE", "sccache"),
            cache_dir=Path(variables["SCCACHE_DIR"]),
            socket=Path(variables["SCCACHE_SERVER_UDS"]),
            disabled=variables.get("BUILDFARM_CACHE_DISABLED", ""),
            refused=variables.get("BUILDFARM_CACHE_REFUSED", ""),
            reads=not {"SCCACHE_NO_CACHE", "SCCACHE_RECACHE"} & variables.keys(),
            shared=tuple(variables.get(SHARED, "").split()),
        )

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
        return {name: value for name, value in variables.items() if name not in {*self.shared, SHARED}}

    @property
    def host_launcher(self) -> Path:
        """The launcher of the build's C++ compiler."""
        return self.layout.launch / Path(self.recipe_cxx).name

    @property
    def host_compiler(self) -> Path:
        """The real program behind `host_launcher`."""
        return self.layout.compilers / Path(self.recipe_cxx).name
