"""The Python environment that the user is in."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.errors import UsageError


@dataclass(frozen=True)
class CurrentEnvironment:
    """A Python environment: its folder, its python program, and the folder of its distributions.

    `of_buildfarm` is whether no variable names it, so that it is the environment of buildfarm.
    """

    prefix: Path
    interpreter: Path
    site_packages: Path
    of_buildfarm: bool = False


def current_environment() -> CurrentEnvironment:
    """Find the current environment; raises UsageError when the folder that a variable names is no environment."""
    named = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if not named:  # sysconfig, since Debian's Python has its distributions in `dist-packages`
        return CurrentEnvironment(
            Path(sys.prefix), Path(sys.executable), Path(sysconfig.get_path("purelib")), of_buildfarm=True
        )
    prefix = Path(named)
    for site_packages in sorted((prefix / "lib").glob("python3*/site-packages")):
        return CurrentEnvironment(prefix, prefix / "bin" / "python", site_packages)
    raise UsageError(
        "VIRTUAL_ENV or CONDA_PREFIX names this folder, which is not a Python environment", where=str(prefix)
    )


def installed_version(site_packages: Path, name: str) -> str:
    """The version of an installed distribution, or empty."""
    from importlib.metadata import distributions  # noqa: PLC0415 - takes long

    found = distributions(path=[str(site_packages)])
    return next((d.version for d in found if canonicalize_name(d.name) == canonicalize_name(name)), "")
