"""The facts about an environment that the checks judge. They come from files; no package is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch


@dataclass(frozen=True)
class Interpreter:
    """A Python, as it describes itself.

    Attributes:
        executable: the program.
        prefix: the folder of the environment.
        python: its version.
        own: the folders into which installers put packages of this environment.
        path: the folders of `sys.path`, in order, without the current folder.
        user_site: the folder of packages that the user installed outside of environments, if Python reads it.
        headers: Python.h is there, so that extensions can be compiled.
        markers: the values of environment markers, such as `platform_machine`.

    """

    executable: Path
    prefix: Path
    python: Python
    own: tuple[Path, ...]
    path: tuple[Path, ...]
    user_site: Path | None
    headers: bool
    markers: Mapping[str, str]


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: normalized name.
        version: version with its local part.
        folder: the folder of `sys.path` that it is in.
        requires: its Requires-Dist lines.
        installer: the program that installed it, such as `pip`, `uv` or `conda`; may be empty.
        source: URL of its source if it does not come from an index, else empty.
        libraries: digest of RECORD (`sha256=…`, may be empty) of each shared library, by its path below `folder`.

    """

    name: str
    version: str
    folder: Path
    requires: tuple[str, ...] = ()
    installer: str = ""
    source: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def public(self) -> str:
        """The version without its local part."""
        return self.version.partition("+")[0]

    @property
    def local(self) -> str:
        """The local part of the version, such as `cu130`; may be empty."""
        return self.version.partition("+")[2]

    def requirements(self, markers: Mapping[str, str]) -> Iterator[Requirement]:
        """What the package requires without extras in an environment with these markers."""
        for line in self.requires:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
                yield requirement

    def torch_requirement(self, markers: Mapping[str, str]) -> Requirement | None:
        """Its requirement of torch, if it names versions."""
        found = (one for one in self.requirements(markers) if canonicalize_name(one.name) == "torch")
        return next((one for one in found if one.specifier), None)


@dataclass(frozen=True)
class TorchInstall:
    """A torch on `sys.path`.

    Attributes:
        folder: the folder that holds the folder `torch`.
        version: the version in torch/version.py, else that of the distribution.
        cuda: the CUDA that it was built for, or None.
        package: its distribution, or None for a folder without metadata.

    """

    folder: Path
    version: str
    cuda: Cuda | None
    package: Package | None

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
class Gpu:
    """A GPU: its name, and its compute capability."""

    name: str
    arch: Arch


@dataclass(frozen=True)
class Machine:
    """The driver and the GPUs.

    Attributes:
        driver: version of NVIDIA's driver; empty: unknown or none.
        gpus: the GPUs.
        described: a file describes them; they are not those of this machine.

    """

    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    described: bool = False


@dataclass(frozen=True)
class Tools:
    """Programs that compile extensions: the path or the version of each, empty if it is missing.

    Attributes:
        ninja: path of ninja.
        compiler: `g++ 12.2.0`.
        nvcc: version, such as 13.0.88.
        home: root folder of the toolkit of this nvcc.

    """

    ninja: str = ""
    compiler: str = ""
    nvcc: str = ""
    home: str = ""


@dataclass(frozen=True)
class Environment:
    """An environment and its machine.

    Attributes:
        interpreter: its Python.
        packages: the distributions on `sys.path`, in its order; a name may occur more than once.
        torches: each torch on `sys.path`; Python imports the first.
        machine: driver and GPUs.
        tools: programs that compile extensions.
        variables: environment variables that change what is loaded or built.
        conda: conda's packages of this environment, name and version.
        platform: operating system and processor.

    """

    interpreter: Interpreter
    packages: tuple[Package, ...]
    torches: tuple[TorchInstall, ...]
    machine: Machine
    tools: Tools
    variables: Mapping[str, str]
    conda: Mapping[str, str]
    platform: Platform

    @property
    def torch(self) -> TorchInstall | None:
        """The torch that `import torch` finds."""
        return self.torches[0] if self.torches else None

    @cached_property
    def visible(self) -> dict[str, Package]:
        """The first distribution of each name: the one that Python imports."""
        found: dict[str, Package] = {}
        for package in self.packages:
            found.setdefault(package.name, package)
        return found
