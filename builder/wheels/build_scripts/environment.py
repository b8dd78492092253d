"""Where a build's files are in its container: variables that `builder.wheels.cibuildwheel.config` sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The user of rendered images. Files in the shared volumes belong to it.
BUILD_USER = 1000


@dataclass(frozen=True)
class BuildPaths:
    """Folders of one build in its container.

    Attributes:
        job_dir: the folder mounted from the host: requirements.txt, these scripts, results.
        packages: uv's cache; environments and bytecode are in it too.
        environment: the build's virtual environment, inside `packages`.
        prefix: the Python that cibuildwheel uses; becomes a link to `environment`.
        site: the build's site-packages.
        toolkit: the CUDA toolkit.
        torch_cuda: the CUDA version that torch must be built for (`13.0`), or empty.
        links_toolkit: whether the toolkit comes from the package index and needs links.
        keeps_environment: whether the environment is needed after the build, for the source's own tests.
        shared: whether `packages` is read-only and `environment` exists, because `install.py` made it.

    """

    job_dir: Path
    packages: Path
    environment: Path
    prefix: Path
    site: Path
    toolkit: Path
    torch_cuda: str = ""
    links_toolkit: bool = False
    keeps_environment: bool = False
    shared: bool = False

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> BuildPaths:
        """Read the BUILDFARM_ variables; raises KeyError when one is missing."""
        return cls(
            job_dir=Path(variables["BUILDFARM_JOB_DIR"]),
            packages=Path(variables["BUILDFARM_PACKAGES"]),
            environment=Path(variables["BUILDFARM_ENVIRONMENT"]),
            prefix=Path(variables["BUILDFARM_PREFIX"]),
            site=Path(variables["BUILDFARM_SITE"]),
            toolkit=Path(variables["BUILDFARM_TOOLKIT"]),
            torch_cuda=variables.get("BUILDFARM_TORCH_CUDA", ""),
            links_toolkit=bool(variables.get("BUILDFARM_LINK_TOOLKIT")),
            keeps_environment=bool(variables.get("BUILDFARM_KEEP_ENVIRONMENT")),
            shared=bool(variables.get("BUILDFARM_SHARED_PACKAGES")),
        )

    @property
    def requirements(self) -> Path:
        """The locked packages of the build, one exact requirement in each line."""
        return self.job_dir / "requirements.txt"

    @property
    def complete(self) -> Path:
        """Exists when a shared environment is complete."""
        return self.environment / ".complete"

    @property
    def test_environment(self) -> Path:
        """The virtual environment of the source's own tests."""
        return self.environment.with_name(f"{self.environment.name}-test")
