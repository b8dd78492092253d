"""uv on the cache in the volume of packages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from builder.wheels.build_scripts.environment import BUILD_USER, BuildPaths


def run_uv(paths: BuildPaths, *arguments: str | Path) -> None:
    """Run uv with its cache in `paths.packages`; raises CalledProcessError.

    In a container of root (for the before-all of a source) uv runs as the build's user all the same: that user could
    neither link nor replace files of root in the cache. The cache that builds share belongs to root.
    """
    changed = os.geteuid() == 0 and not paths.shared
    user: dict[str, Any] = {"user": BUILD_USER, "group": BUILD_USER, "extra_groups": []} if changed else {}
    variables = {**os.environ, "UV_CACHE_DIR": str(paths.packages)}
    subprocess.run(["uv", *arguments], env=variables, check=True, **user)


def install_packages(paths: BuildPaths, environment: Path) -> None:
    """Install the build's locked packages into an environment; raises CalledProcessError.

    `environment` is the real path and not a link to it: uv links each file by its full name, and each folder in that
    name is looked up in the container's storage.
    """
    options: list[str | Path] = ["--no-config", "--no-deps", "--python", environment / "bin" / "python"]
    run_uv(paths, "pip", "install", *options, "--requirements", paths.requirements)
