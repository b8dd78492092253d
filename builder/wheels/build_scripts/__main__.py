"""Runs one script: `python -I -S -B FOLDER JOB COMMAND [ARGUMENT...]`. FOLDER is that of this file, JOB its `job_file`.

-I and -S keep variables and packages of the build away from this Python. -B, because nobody could delete bytecode that
the container's user leaves in the job's folder.

In a container of its own, root installs the locked packages of the build. The volume is mounted read-only where code of
a source runs, so builds share environments and cannot change them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))  # the folder that holds `builder`

from builder.wheels.build_scripts.job_file import BuildPaths, read_job
from builder.wheels.build_scripts.new_environment import (
    BUILD_MODULES,
    IMPORT,
    fix_header_times,
    link_toolkit,
    torch_mismatch,
)
from builder.wheels.sccache.launchers import server
from builder.wheels.sccache.launchers.server import CacheSettings

#: In site-packages while the build runs: Python takes its packages from a path that is the same for every Python,
#: because the path of torch's headers reaches command lines and, by __FILE__, objects.
_PATH_FILE = "buildfarm.pth"
_PATH_LINE = (
    "import os, sys; sys.path[:] = "
    '["{link}" if os.path.realpath(p) == os.path.realpath("{site}") else p for p in sys.path]\n'
)


def main(job: str, command: str, *arguments: str) -> int:
    """Run a command; returns its exit status."""
    file = Path(job)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with what programs print
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # for this process and all programs below it
    if command == "with-compiler-cache":
        return server.run_behind_cache(read_job(file, CacheSettings), arguments)
    commands: dict[str, Callable[..., None]]
    commands = {"before-build": prepare, "install-packages": install, "after-build": finish}
    if command not in commands:
        sys.exit(f"error: unknown command {command}")
    try:
        commands[command](read_job(file, BuildPaths), read_job(file, CacheSettings), *map(Path, arguments))
    except subprocess.CalledProcessError as error:  # the program has printed the reason
        return error.returncode if error.returncode > 0 else 128 - error.returncode
    return 0


def install(paths: BuildPaths, cache: CacheSettings) -> None:
    """Make the environment unless an earlier build made it; raises CalledProcessError, or SystemExit 1.

    It is inside the mounted uv cache because hard links do not cross mounts: linking takes half a second, copying torch
    and its CUDA packages into the container's layer takes fifty.
    """
    lock = os.open(paths.environment.with_name(f"{paths.environment.name}.lock"), os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends
    if not paths.complete.exists():
        python = (paths.prefix / "bin" / "python").resolve()
        _run_uv(paths, "venv", "--no-config", "--clear", "--python", python, paths.environment)
        replace_by_link(paths)
        # The real path and not a link to it: uv links each file by its full name, and each folder in that name is
        # looked up in the container's storage.
        options: list[str | Path] = ["--no-config", "--no-deps", "--python", paths.environment / "bin" / "python"]
        _run_uv(paths, "pip", "install", *options, "--requirements", paths.requirements)
        if paths.torch_cuda and (problem := torch_mismatch(paths.site, paths.torch_cuda)):
            sys.exit(f"error: {problem}")
        fix_header_times(paths.site)
        subprocess.run([paths.environment / "bin" / "python", "-I", "-c", IMPORT, "", *BUILD_MODULES], check=False)
        line = _PATH_LINE.format(link=cache.layout.site, site=paths.site)
        (paths.site / _PATH_FILE).write_text(line, encoding="utf-8")
        os.sync()
        paths.complete.touch()
    if paths.links_toolkit:  # an environment of an older buildfarm may lack a link
        link_toolkit(paths.toolkit, "gcc")


def _run_uv(paths: BuildPaths, *arguments: str | Path) -> None:
    """Run uv with its cache in `paths.packages`; raises CalledProcessError."""
    subprocess.run(["uv", *arguments], env={**os.environ, "UV_CACHE_DIR": str(paths.packages)}, check=True)


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
    options = [word for name in (*paths.drivers, *brought) for word in ("--exclude", name)]
    subprocess.run(["auditwheel", "repair", *options, "--wheel-dir", destination, wheel], check=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
