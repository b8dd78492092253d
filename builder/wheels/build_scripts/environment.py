"""Where a build's files are in its container: variables that `builder.wheels.cibuildwheel.config` sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BuildPaths:
    """Folders of one build in its container."""

    #: The folder mounted from the host: requirements.txt, these scripts, results.
    job_dir: Path
    #: uv's cache; environments are in it too. Read-only in the container of a build.
    packages: Path
    #: The virtual environment inside `packages` that `install.py` made.
    environment: Path
    #: The Python that cibuildwheel uses; becomes a link to `environment`.
    prefix: Path
    #: The build's site-packages.
    site: Path
    #: The CUDA toolkit.
    toolkit: Path
    #: The CUDA version that torch must be built for (`13.0`), or empty.
    torch_cuda: str = ""
    #: Whether the toolkit comes from the package index and needs links.
    links_toolkit: bool = False

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
        )

    @property
    def requirements(self) -> Path:
        """The locked packages of the build, one exact requirement in each line."""
        return self.job_dir / "requirements.txt"

    @property
    def complete(self) -> Path:
        """Exists when the environment is complete."""
        return self.environment / ".complete"
