"""The file with the job of the build scripts: where the files of a build are, and its compilers and compiler cache.

buildfarm writes it as JSON, and the scripts read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from builder.wheels.sccache.launchers.server import CacheSettings

_Described = TypeVar("_Described", "BuildPaths", CacheSettings)


@dataclass(frozen=True)
class BuildPaths:
    """Folders of one build in its container."""

    job_dir: Path  # the folder mounted from the host: requirements.txt, these scripts, results
    packages: Path  # uv's cache; environments are in it too. Read-only in the container of a build.
    environment: Path  # the virtual environment inside `packages` that `install-packages` made
    prefix: Path  # the Python that cibuildwheel uses; becomes a link to `environment`
    site: Path  # the build's site-packages
    toolkit: Path  # the CUDA toolkit
    torch_cuda: str = ""  # the CUDA version that torch must be built for (`13.0`), or empty
    links_toolkit: bool = False  # whether the toolkit comes from the package index and needs links
    drivers: Sequence[str] = ()  # file names of the driver's libraries

    @property
    def requirements(self) -> Path:
        """The locked packages of the build, one exact requirement in each line."""
        return self.job_dir / "requirements.txt"

    @property
    def complete(self) -> Path:
        """Exists when the environment is complete."""
        return self.environment / ".complete"


def write_job(path: Path, cache: CacheSettings, paths: BuildPaths | None = None) -> None:
    """Write the file; a build without a container has no `paths`."""
    data = {type(part).__name__: asdict(part) for part in (cache, paths) if part}
    path.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")


def read_job(path: Path, kind: type[_Described]) -> _Described:
    """The compilers and the compiler cache of a build, or its folders in its container."""
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))[kind.__name__]
    folders = {field.name for field in fields(kind) if field.type == "Path"}
    values: dict[str, Any] = {name: Path(value) if name in folders else value for name, value in data.items()}
    return kind(**values)
