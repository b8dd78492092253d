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

    The environment is inside the mounted uv cache because hard links do not cross mounts: linking takes half a second,
    copying torch and its CUDA packages into the container's layer takes fifty. Environments that killed runs left there
    are deleted first.
    """
    environment_lock.hold(paths.environment)
    python = (paths.prefix / "bin" / "python").resolve()
    run_uv(paths, "venv", "--no-config", "--clear", "--python", python, paths.environment)
    _replace_by_link(paths)
    install_packages(paths, paths.environment)
    if paths.torch_cuda and (problem := torch_mismatch(paths.site, paths.torch_cuda)):
        sys.exit(f"error: {problem}")
    if paths.links_toolkit:
        link_toolkit(paths.toolkit, paths.torch_cuda.split(".", maxsplit=1)[0])
    with suppress(OSError):  # Python compiles what is missing
        bytecode.take(paths)
    (paths.site / PATH_FILE).write_text(_PATH_LINE.format(link=cache.layout.site, site=paths.site), encoding="utf-8")
    server.start(cache)


def _replace_by_link(paths: BuildPaths) -> None:
    if paths.prefix.is_symlink():
        paths.prefix.unlink()
    else:
        shutil.rmtree(paths.prefix)
    paths.prefix.symlink_to(paths.environment)
