"""Before a source's own tests of its wheel: the build's packages in the tests' environment, and the test files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from builder.wheels.build_scripts.environment import BUILD_USER, BuildPaths
from builder.wheels.build_scripts.shared_uv import install_packages


def prepare_tests(paths: BuildPaths) -> None:
    """Install the build's packages, torch among them, where cibuildwheel tests; raises CalledProcessError.

    VIRTUAL_ENV names cibuildwheel's environment for the tests, and the working directory is the one of the tests.
    """
    made = Path(os.environ["VIRTUAL_ENV"])
    environment = paths.test_environment
    # The environment moves to where the packages are, so that they can be hard links (see prepare.py).
    shutil.rmtree(environment, ignore_errors=True)
    shutil.move(made, environment)
    if os.geteuid() == 0:  # uv does not run as root (see shared_uv.py)
        _give_to_build_user(environment)
    made.symlink_to(environment)
    install_packages(paths, environment)
    # The top-level tests/ of a recipe's own folder is not part of the source, so it is added only now.
    if (paths.job_dir / "tests").is_dir() and not Path("tests").exists():
        shutil.copytree(paths.job_dir / "tests", "tests", symlinks=True)


def _give_to_build_user(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, BUILD_USER, BUILD_USER, follow_symlinks=False)
