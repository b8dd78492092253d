"""After a build in a container: the wheel gets the libraries it needs, and buildfarm gets the packages' metadata."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from builder.wheels.build_scripts.job_file import BuildPaths
from builder.wheels.sccache.launchers import server
from builder.wheels.sccache.launchers.environment import CacheSettings

#: File in the job's folder that the host writes: a file name of a driver's library in each line.
DRIVER_LIBRARIES = "driver_libraries.txt"


def finish(paths: BuildPaths, cache: CacheSettings, wheel: Path, destination: Path) -> None:
    """Write the repaired wheel into `destination`; raises CalledProcessError when auditwheel refuses it.

    auditwheel copies into the wheel what the wheel needs of this image, except the libraries that torch, its CUDA
    packages and the driver bring at run time: those would be loaded twice.
    """
    server.stop(cache)
    _copy_metadata(paths.site, paths.job_dir / "site")
    for folder in (paths.job_dir / "site", cache.statistics_dir):
        _open_to_all(folder)
    folders = (paths.site / "torch" / "lib", paths.site / "nvidia")
    brought = sorted({path.name for folder in folders for path in folder.rglob("lib*.so*")})
    excluded = [*(paths.job_dir / DRIVER_LIBRARIES).read_text(encoding="utf-8").split(), *brought]
    options = [word for name in excluded for word in ("--exclude", name)]
    subprocess.run(["auditwheel", "repair", *options, "--wheel-dir", destination, wheel], check=True)


def _copy_metadata(site: Path, target: Path) -> None:
    """The packages' own lists of files: from them buildfarm finds which libraries a user's torch brings."""
    target.mkdir(exist_ok=True)
    for name in ("METADATA", "RECORD"):
        for path in site.glob(f"*.dist-info/{name}"):
            (target / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.parent.name / name)


def _open_to_all(folder: Path) -> None:
    """Let everybody write a tree: buildfarm deletes it, and may be a different user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
