"""Before a build in a container: its environment, which `install.py` made, and the compilers behind the cache."""

from __future__ import annotations

import shutil
import sys

from builder.wheels.build_scripts.job_file import BuildPaths
from builder.wheels.sccache.launchers import server
from builder.wheels.sccache.launchers.environment import CacheSettings


def prepare(paths: BuildPaths, cache: CacheSettings) -> None:
    """Link the build's environment and start the compiler cache; raises CalledProcessError, or SystemExit 1."""
    if not paths.complete.exists():
        sys.exit("error: the volume of packages was deleted while the build started")
    replace_by_link(paths)
    server.start(cache)


def replace_by_link(paths: BuildPaths) -> None:
    """Let the Python that cibuildwheel uses be the one of the build's environment; raises OSError."""
    if paths.prefix.is_symlink():
        paths.prefix.unlink()
    else:
        shutil.rmtree(paths.prefix)
    paths.prefix.symlink_to(paths.environment)
