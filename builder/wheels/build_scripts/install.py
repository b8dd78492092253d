"""Before a build in a container, in a container of its own: root installs the locked packages of the build.

The volume is mounted read-only where code of a source runs, so builds share environments and cannot change them. An
environment that no build has used for a month is deleted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from builder.wheels.build_scripts import environment_lock
from builder.wheels.build_scripts.environment import BuildPaths
from builder.wheels.build_scripts.prepare import make_environment, write_path_file
from builder.wheels.sccache.launchers.environment import CacheSettings

#: How long an environment that no build uses is kept, seconds.
_KEPT_SECONDS = 30 * 24 * 3600

#: Python keeps the bytecode of what it imports. A build cannot write any, and would compile these modules again.
_IMPORTED = ("torch.utils.cpp_extension", "setuptools.build_meta", "setuptools.command.bdist_wheel")
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        pass
"""


def install(paths: BuildPaths, cache: CacheSettings) -> None:
    """Make the environment unless an earlier build made it; raises CalledProcessError, or SystemExit 1."""
    environment_lock.lock(paths.environment.with_name(f"{paths.environment.name}.lock"), wait=True)
    if not paths.complete.exists():
        make_environment(paths)
        subprocess.run([paths.environment / "bin" / "python", "-I", "-c", _IMPORT, *_IMPORTED], check=False)
        write_path_file(paths, cache)
        os.sync()
        paths.complete.touch()
    os.utime(paths.complete)
    _delete_old(paths.packages, paths.environment.name)


def _delete_old(packages: Path, own: str) -> None:
    """Delete the environments that are old, or whose installation was killed."""
    for folder in packages.glob("env-*"):
        if folder.suffix == ".lock" or folder.name == own:
            continue
        lock = folder.with_name(f"{folder.name}.lock")
        with suppress(OSError):
            descriptor = environment_lock.lock(lock, wait=False)
            if descriptor is None:  # a different container installs it
                continue
            used = (folder / ".complete").stat().st_mtime if (folder / ".complete").exists() else 0
            if time.time() - used > _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)
            os.close(descriptor)
