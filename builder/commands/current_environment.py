"""The Python environment that the user is in."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from builder.errors import Code, UsageError
from builder.matrix.axes import Cuda, Python, Torch
from builder.wheels.build_scripts.cuda_packages import torch_cuda

_NAME_THEM = "name the versions, such as `--torch 2.11 --cuda 13.0 --python 3.12`"


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
        "VIRTUAL_ENV or CONDA_PREFIX names this folder, which is not a Python environment",
        Code.NO_ENVIRONMENT,
        where=str(prefix),
    )


def installed_version(site_packages: Path, name: str) -> str:
    """The version of the installed distribution of this name, or empty."""
    from importlib.metadata import distributions  # noqa: PLC0415 - takes long

    from builder.wheelfile.installed import distribution_name  # noqa: PLC0415 - takes long

    found = distributions(path=[str(site_packages)])
    return next((each.version for each in found if distribution_name(each) == name), "")


def torch_here() -> Torch:
    """The release of the current environment's torch. Raises UsageError if it has none."""
    here = current_environment()
    if not (version := installed_version(here.site_packages, "torch")):
        raise UsageError(
            f"--torch is not given, and the current environment has no torch ({here.prefix})",
            Code.NO_ENVIRONMENT,
            hints=[_NAME_THEM],
        )
    return Torch.parse(Version(version).base_version)


def cuda_here() -> Cuda:
    """The CUDA of the current environment's torch. Raises UsageError if it has no torch for CUDA."""
    here = current_environment()
    cuda = torch_cuda(here.site_packages) if (here.site_packages / "torch" / "version.py").is_file() else ""
    if not cuda:
        raise UsageError(
            f"--cuda is not given, and the torch of the current environment is not for CUDA ({here.prefix})",
            Code.NO_ENVIRONMENT,
            hints=[_NAME_THEM],
        )
    return Cuda.parse(cuda)


def python_here() -> Python:
    """The Python of the current environment."""
    here = current_environment()
    if here.of_buildfarm:
        return Python(sys.version_info.major, sys.version_info.minor)
    return Python.parse(here.site_packages.parent.name.removeprefix("python"))
