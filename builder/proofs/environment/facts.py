"""The facts about an environment that the checks judge. They come from files; no package is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Gpu, Platform, Python, Torch


@dataclass(frozen=True)
class InstalledPython:
    """A Python, as it describes itself."""

    #: The program.
    executable: Path
    #: The folder of the environment.
    prefix: Path
    #: Its version.
    python: Python
    #: The folders into which installers put packages of this environment.
    own: tuple[Path, ...]
    #: The folders of `sys.path`, in order, without the current folder.
    path: tuple[Path, ...]
    #: The folder of packages that the user installed outside of environments, if Python reads it.
    user_site: Path | None
    #: Python.h is there, so that extensions can be compiled.
    headers: bool
    #: The values of environment markers, such as `platform_machine`.
    markers: Mapping[str, str]
    #: Whether the system manages its packages (PEP 668), so that installers refuse to change them.
    managed: bool = False


@dataclass(frozen=True)
class InstalledPackage:
    """An installed distribution."""

    #: Normalized name.
    name: str
    #: Version with its local part.
    version: str
    #: The folder of `sys.path` that it is in.
    folder: Path
    #: Its Requires-Dist lines.
    requires: tuple[str, ...] = ()
    #: The program that installed it, such as `pip`, `uv` or `conda`; may be empty.
    installer: str = ""
    #: URL of its source if it does not come from an index, else empty.
    source: str = ""
    #: Digest of RECORD (`sha256=…`, may be empty) of each shared library, by its path below `folder`.
    libraries: Mapping[str, str] = field(default_factory=dict)
    #: What each `import torch` calls: the values of its entry points in the group `torch.backends`.
    backends: tuple[str, ...] = ()

    @property
    def public(self) -> str:
        """The version without its local part."""
        return self.version.partition("+")[0]

    @property
    def local(self) -> str:
        """The local part of the version, such as `cu130`; may be empty."""
        return self.version.partition("+")[2]

    @property
    def lost_libraries(self) -> list[str]:
        """The libraries of RECORD that do not exist."""
        return [path for path in self.libraries if not (self.folder / path).is_file()]

    def requirements(self, markers: Mapping[str, str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
        """What the package requires with these extras in an environment with these markers."""
        choices = [{**markers, "extra": extra} for extra in ("", *extras)]
        for line in self.requires:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if requirement.marker is None or any(map(requirement.marker.evaluate, choices)):
                yield requirement

    def torch_requirement(self, markers: Mapping[str, str]) -> Requirement | None:
        """Its requirement of torch, if it names versions."""
        found = (one for one in self.requirements(markers) if canonicalize_name(one.name) == "torch")
        return next((one for one in found if one.specifier), None)


@dataclass(frozen=True)
class TorchInstall:
    """A torch on `sys.path`."""

    #: The folder that holds the folder `torch`.
    folder: Path
    #: The version in torch/version.py, else that of the distribution.
    version: str
    #: The CUDA that it was built for, or None.
    cuda: Cuda | None
    #: Its distribution, or None for a folder without metadata.
    package: InstalledPackage | None

    @property
    def release(self) -> Torch | None:
        """The release; None for a nightly and for a version that cannot be read."""
        return self.base if self.base and not Version(self.version).is_prerelease else None

    @property
    def base(self) -> Torch | None:
        """The release, or for a nightly the release that it precedes."""
        try:
            return Torch.parse(Version(self.version).base_version)
        except (InvalidVersion, UsageError):
            return None

    @property
    def libraries(self) -> Path:
        """The folder of its libraries."""
        return self.folder / "torch" / "lib"


@dataclass(frozen=True)
class Machine:
    """The driver and the GPUs."""

    #: Version of NVIDIA's driver; empty: unknown or none.
    driver: str = ""
    #: The GPUs.
    gpus: tuple[Gpu, ...] = ()
    #: A file describes them; they are not those of this machine.
    described: bool = False


@dataclass(frozen=True)
class Tools:
    """Programs that compile extensions: the path or the version of each, empty if it is missing."""

    #: Path of ninja.
    ninja: str = ""
    #: `g++ 12.2.0`.
    compiler: str = ""
    #: Version, such as 13.0.88.
    nvcc: str = ""
    #: Root folder of the toolkit of this nvcc.
    home: str = ""


@dataclass(frozen=True)
class InstalledEnvironment:
    """An environment and its machine."""

    #: Its Python.
    interpreter: InstalledPython
    #: The distributions on `sys.path`, in its order; a name may occur more than once.
    packages: tuple[InstalledPackage, ...]
    #: Each torch on `sys.path`; Python imports the first.
    torches: tuple[TorchInstall, ...]
    #: Driver and GPUs.
    machine: Machine
    #: Programs that compile extensions.
    tools: Tools
    #: Environment variables that change what is loaded or built.
    variables: Mapping[str, str]
    #: Conda's packages of this environment, name and version.
    conda: Mapping[str, str]
    #: Operating system and processor.
    platform: Platform
    #: Files and folders that an interrupted uninstallation of pip left on `sys.path`: their names begin with `~`.
    leftovers: tuple[Path, ...] = ()
    #: The files with settings of uv that choose torch's index (`torch-backend`).
    torch_backends: tuple[Path, ...] = ()

    @property
    def torch(self) -> TorchInstall | None:
        """The torch that `import torch` finds."""
        return self.torches[0] if self.torches else None

    @cached_property
    def visible(self) -> dict[str, InstalledPackage]:
        """The first distribution of each name: the one that Python imports."""
        found: dict[str, InstalledPackage] = {}
        for package in self.packages:
            found.setdefault(package.name, package)
        return found
