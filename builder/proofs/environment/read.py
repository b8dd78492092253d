"""Reads the facts about an environment: asks its Python for its folders, then reads metadata and other files."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import Code, UsageError
from builder.gate.system import nvidia
from builder.images.network import uv_files
from builder.matrix.axes import Arch, Cuda, Gpu, Platform, Python
from builder.proofs.cells.driver import driver_version
from builder.proofs.environment.facts import (
    InstalledEnvironment,
    InstalledPackage,
    InstalledPython,
    Machine,
    Tools,
    TorchInstall,
)
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.installed import distribution_name
from builder.wheels.build_scripts.cuda_packages import torch_cuda
from builder.wheels.toolchain.cuda_toolkit import nvcc_version

#: The program that the judged Python runs. It imports the standard library only, and runs under Python 3.7.
PROBE = """
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, os, platform, site, sysconfig
version = "{0[0]}.{0[1]}.{0[2]}".format(sys.version_info)
print(json.dumps({
    "executable": sys.executable,
    "prefix": sys.prefix,
    "python": "{0[0]}.{0[1]}".format(sys.version_info) + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "own": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
    "path": [entry for entry in sys.path if os.path.isdir(entry)],
    "user_site": (site.getusersitepackages() if site.ENABLE_USER_SITE else ""),
    "managed": sys.prefix == sys.base_prefix
    and os.path.isfile(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "markers": {
        "python_version": "{0[0]}.{0[1]}".format(sys.version_info),
        "python_full_version": version,
        "implementation_name": sys.implementation.name,
        "implementation_version": version,
        "platform_python_implementation": platform.python_implementation(),
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_system": platform.system(),
        "platform_machine": platform.machine(),
        "platform_release": "",
        "platform_version": "",
    },
}))
"""


#: Environment variables that are read, and that a bug report may show. Others are never shown.
VARIABLES = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST", "PYTORCH_NVRTC", "PYTHONPATH",
    "PYTHONNOUSERSITE", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CC", "CXX", "UV_TORCH_BACKEND",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)  # fmt: skip
_SECONDS = 60
_MOST = 300  # characters of a message
#: The key of uv.toml that chooses torch's index.
_BACKEND = re.compile(rb"(?m)^torch-backend\b")
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")


def read_environment(python: Path, machine: Machine | None = None) -> InstalledEnvironment:
    """Read the environment of a Python. `machine` stands for another machine than this one.

    Raises UsageError if the program is not a Python that runs.
    """
    interpreter = _read_python(python)
    found = (_package(one, folder) for folder in interpreter.path for one in distributions(path=[str(folder)]))
    packages = tuple(package for package in found if package is not None)
    conda = (file.stem.rsplit("-", 2) for file in sorted((interpreter.prefix / "conda-meta").glob("*-*-*.json")))
    return InstalledEnvironment(
        interpreter=interpreter,
        packages=packages,
        torches=tuple(_torches(interpreter.path, packages)),
        machine=machine or _own_machine(),
        tools=_tools(interpreter),
        variables={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
        conda={name: version for name, version, _ in conda if name},
        platform=_platform(interpreter.markers),
        leftovers=tuple(left for folder in interpreter.path for left in sorted(folder.glob("~*"))),
        torch_backends=tuple(path for path in uv_files() if path.is_file() and _BACKEND.search(path.read_bytes())),
    )


def _read_python(python: Path) -> InstalledPython:
    """Ask a Python for its version and folders; raises UsageError if it does not run."""
    program = Path(shutil.which(str(python)) or python)
    if program.is_dir():
        program = program / "bin" / "python"
    reason = ""
    try:
        ran = subprocess.run([program, "-c", PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False)
        lines = ran.stdout.splitlines() if ran.returncode == 0 else []
        reason = (ran.stderr.splitlines() or [""])[-1].strip()[:_MOST]
        return parse_json(
            lines[-1] if lines else "",
            lambda data: InstalledPython(
                executable=Path(data["executable"] or program),
                prefix=Path(data["prefix"]),
                python=Python.parse(data["python"]),
                own=tuple(dict.fromkeys(map(Path, data["own"]))),
                path=tuple(dict.fromkeys(map(Path, data["path"]))),
                user_site=Path(data["user_site"]) if data["user_site"] else None,
                headers=data["headers"],
                markers=data["markers"],
                managed=data["managed"],
            ),
        )
    except OSError as error:
        reason = error.strerror or ""
    except subprocess.TimeoutExpired:
        reason = f"it did not answer within {_SECONDS} seconds"
    except (JsonError, UnicodeDecodeError):
        pass
    raise UsageError(
        f"this is not a Python that runs{f': {reason}' if reason else ''}",
        Code.NO_ENVIRONMENT,
        where=str(python),
        hints=["name one: --python .venv/bin/python"],
    )


def _own_machine() -> Machine:
    """The driver and the GPUs of this machine, from nvidia-smi and the kernel module."""
    rows = nvidia.smi(["index", "name", "compute_cap"])
    gpus = tuple(Gpu(row.get("name", "GPU"), Arch.parse(row["compute_cap"])) for row in rows if "compute_cap" in row)
    return Machine(driver_version(), gpus)


def _platform(markers: Mapping[str, str]) -> Platform:
    name = f"linux_{markers['platform_machine']}"
    if markers["sys_platform"] != "linux" or name not in list(Platform):
        raise UsageError(
            f"doctor judges Python on Linux for x86_64 and aarch64, not {markers['platform_system']} on"
            f" {markers['platform_machine']}",
            Code.PLATFORM_UNSUPPORTED,
        )
    return Platform(name)


def _package(found: Distribution, folder: Path) -> InstalledPackage | None:
    """One distribution; None if its metadata is damaged, as an interrupted installation leaves it."""
    if Path(str(getattr(found, "_path", ""))).name.startswith("~"):  # a leftover, which installers ignore
        return None
    try:
        name, metadata = distribution_name(found), found.metadata
        version = metadata["Version"] if "Version" in metadata else ""  # noqa: SIM401 - its type has no `get` before 3.12
        Version(version)
    except (OSError, TypeError, ValueError):  # no METADATA, other bytes than UTF-8, not a version
        return None
    if not name:
        return None
    files: dict[str, str] = {}
    with suppress(OSError, ValueError, csv.Error):  # a damaged RECORD
        # Not `found.files`: since Python 3.12 it leaves out files that were deleted.
        rows = csv.reader((found.read_text("RECORD") or "").splitlines())
        files = {row[0]: "".join(row[1:2]) for row in rows if row and _LIBRARY.search(PurePosixPath(row[0]).name)}
    return InstalledPackage(
        name=canonicalize_name(name),
        version=version,
        folder=folder,
        requires=tuple(metadata.get_all("Requires-Dist") or ()),
        installer=(found.read_text("INSTALLER") or "").strip(),
        source=source_url(found.read_text("direct_url.json")),
        libraries=files,
        backends=tuple(point.value for point in found.entry_points.select(group="torch.backends")),
    )


def source_url(text: str | None) -> str:
    """The requirement URL in a file direct_url.json (PEP 610); empty for a package that comes from an index."""

    def url_of(data: dict[str, Any]) -> str:
        vcs = data.get("vcs_info")
        return f"{vcs['vcs']}+{data['url']}@{vcs['commit_id']}" if vcs else str(data.get("url", ""))

    try:
        return parse_json(text or "{}", url_of)
    except JsonError:
        return ""


def _torches(path: Iterable[Path], packages: Iterable[InstalledPackage]) -> Iterator[TorchInstall]:
    for folder in path:
        owners = [package for package in packages if package.name == "torch" and package.folder == folder]
        if not (folder / "torch" / "__init__.py").is_file() and not owners:
            continue
        file, text = folder / "torch" / "version.py", ""
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
        stated = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
        version = stated[1] if stated else owners[0].version if owners else ""
        owner = next((one for one in owners if one.public == version.partition("+")[0]), owners[0] if owners else None)
        cuda = torch_cuda(folder) if text else ""
        yield TorchInstall(folder, version, Cuda.of_toolkit(cuda) if cuda else None, owner)


def _tools(interpreter: InstalledPython) -> Tools:
    """What a build finds: PATH, and the programs beside the Python."""
    search = os.pathsep.join([str(interpreter.executable.parent), os.environ.get("PATH", os.defpath)])
    which = shutil.which("nvcc", path=search)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), which and Path(which).resolve().parents[1]]
    versions = ((str(home), nvcc_version(Path(home))) for home in (*homes, "/usr/local/cuda") if home)
    home, nvcc = next((found for found in versions if found[1]), ("", ""))
    name, compiler = os.environ.get("CXX") or "g++", ""
    if program := shutil.which(name, path=search):
        ran = subprocess.run([program, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
        compiler = f"{name} {ran.stdout.strip()}" if ran.returncode == 0 else ""
    return Tools(ninja=shutil.which("ninja", path=search) or "", compiler=compiler, nvcc=nvcc, home=home)
