"""Before a build in a container: its locked packages, the toolkit's links, and the compilers behind the cache."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress

from builder.wheels.build_scripts import bytecode, environment_lock
from builder.wheels.build_scripts.cuda_packages import link_toolkit, torch_mismatch
from builder.wheels.build_scripts.environment import BuildPaths
from builder.wheels.build_scripts.shared_uv import install_packages, run_uv
from builder.wheels.sccache.launchers import server
from builder.wheels.sccache.launchers.environment import CacheSettings

#: In site-packages while the build runs: Python takes its packages from a path that is the same for every Python,
#: because the path of torch's headers reaches command lines and, by __FILE__, objects.
PATH_FILE = "buildfarm.pth"
_PATH_LINE = (
    "import os, sys; sys.path[:] = "
    '["{link}" if os.path.realpath(p) == os.path.realpath("{site}") else p for p in sys.path]\n'
)


def prepare(paths: BuildPaths, cache: CacheSettings) -> None:
    """Make the build's environment and start the compiler cache; raises CalledProcessError, or SystemExit 1.

    A shared environment exists already. The environment of a source whose own commands may change it is in a volume of
    its extension; environments that killed runs left there are deleted first.
    """
    if paths.shared:
        if not paths.complete.exists():
            sys.exit("error: the volume of packages was deleted while the build started")
        _replace_by_link(paths)
    else:
        environment_lock.hold(paths.environment)
        make_environment(paths)
        with suppress(OSError):  # Python compiles what is missing
            bytecode.take(paths)
        write_path_file(paths, cache)
    server.start(cache)


def make_environment(paths: BuildPaths) -> None:
    """Install the locked packages into a new environment; raises CalledProcessError, or SystemExit 1.

    The environment is inside the mounted uv cache because hard links do not cross mounts: linking takes half a second,
    copying torch and its CUDA packages into the container's layer takes fifty.
    """
    python = (paths.prefix / "bin" / "python").resolve()
    run_uv(paths, "venv", "--no-config", "--clear", "--python", python, paths.environment)
    _replace_by_link(paths)
    install_packages(paths, paths.environment)
    if paths.torch_cuda and (problem := torch_mismatch(paths.site, paths.torch_cuda)):
        sys.exit(f"error: {problem}")
    if paths.links_toolkit:
        link_toolkit(paths.toolkit, "gcc")


def write_path_file(paths: BuildPaths, cache: CacheSettings) -> None:
    """Write PATH_FILE; raises OSError."""
    (paths.site / PATH_FILE).write_text(_PATH_LINE.format(link=cache.layout.site, site=paths.site), encoding="utf-8")


def _replace_by_link(paths: BuildPaths) -> None:
    if paths.prefix.is_symlink():
        paths.prefix.unlink()
    else:
        shutil.rmtree(paths.prefix)
    paths.prefix.symlink_to(paths.environment)
