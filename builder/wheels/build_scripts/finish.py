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
    target = paths.job_dir / "site"
    target.mkdir(exist_ok=True)
    # The packages' own lists of files: from them buildfarm finds which libraries a user's torch brings.
    for name in ("METADATA", "RECORD"):
        for path in paths.site.glob(f"*.dist-info/{name}"):
            (target / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.parent.name / name)
    for folder in (target, cache.statistics_dir):
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)  # buildfarm deletes the tree, and may be a different user
    folders = (paths.site / "torch" / "lib", paths.site / "nvidia")
    brought = sorted({path.name for folder in folders for path in folder.rglob("lib*.so*")})
    excluded = [*(paths.job_dir / DRIVER_LIBRARIES).read_text(encoding="utf-8").split(), *brought]
    options = [word for name in excluded for word in ("--exclude", name)]
    subprocess.run(["auditwheel", "repair", *options, "--wheel-dir", destination, wheel], check=True)
