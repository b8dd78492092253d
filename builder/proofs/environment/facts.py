"""The facts about an environment that the checks judge: its Python names its folders, and the rest comes from files."""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import Code, UsageError
from builder.gate.amounts import grouped
from builder.gate.system import nvidia
from builder.images.network import uv_files
from builder.matrix.axes import Arch, Cuda, Gpu, Platform, Python, Torch
from builder.proofs.cells.driver import driver_version
from builder.untrusted import JsonError, parse_json
from builder.wheelfile.archive import distribution_name
from builder.wheels.build_scripts.new_environment import torch_cuda
from builder.wheels.toolchain.machine import nvcc_version

#: The program that the judged Python runs. It imports the standard library only, and runs under Python 3.7.
PROBE = """
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, os, site, sysconfig
print(json.dumps({
    "executable": sys.executable,
    "prefix": sys.prefix,
    "python": "{0[0]}.{0[1]}".format(sys.version_info) + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "own": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
    "path": [entry for entry in sys.path if os.path.isdir(entry)],
    "user_site": (site.getusersitepackages() if site.ENABLE_USER_SITE else ""),
    "markers": {
        "python_version": "{0[0]}.{0[1]}".format(sys.version_info),
        "python_full_version": "{0[0]}.{0[1]}.{0[2]}".format(sys.version_info),
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


@dataclass(frozen=True)
class InstalledPython:
    """A Python, as it describes itself."""

    executable: Path  # the program
    prefix: Path  # the folder of the environment
    python: Python  # its version
    own: tuple[Path, ...]  # the folders into which installers put packages of this environment
    path: tuple[Path, ...]  # the folders of `sys.path`, in order, without the current folder
    #: The folder of packages that the user installed outside of environments, if Python reads it.
    user_site: Path | None
    markers: Mapping[str, str]  # the values of environment markers in which it differs from this Python


@dataclass(frozen=True)
class InstalledPackage:
    """An installed distribution."""

    name: str  # normalized name
    version: str  # version with its local part
    folder: Path  # the folder of `sys.path` that it is in
    requires: tuple[str, ...] = ()  # its Requires-Dist lines
    installer: str = ""  # the program that installed it, such as `pip`, `uv` or `conda`; may be empty
    source: str = ""  # URL of its source if it does not come from an index, else empty
    libraries: tuple[str, ...] = ()  # the paths of its shared libraries below `folder`, by its RECORD
    #: What each `import torch` calls: the values of its entry points in the group `torch.backends`.
    backends: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name and version, as findings show them."""
        return f"{self.name} {self.version}"

    @property
    def public(self) -> str:
        """The version without its local part."""
        return self.version.partition("+")[0]

    @property
    def local(self) -> str:
        """The local part of the version, such as `cu130`; may be empty."""
        return self.version.partition("+")[2]

    @property
    def lost_libraries(self) -> list[str]:
        """The libraries of RECORD that do not exist."""
        return [path for path in self.libraries if not (self.folder / path).is_file()]

    def requirements(self, markers: Mapping[str, str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
        """What the package requires with these extras in an environment with these markers."""
        choices = [{**markers, "extra": extra} for extra in ("", *extras)]
        for line in self.requires:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if requirement.marker is None or any(map(requirement.marker.evaluate, choices)):
                yield requirement

    def torch_requirement(self, markers: Mapping[str, str]) -> Requirement | None:
        """Its requirement of torch, if it names versions."""
        found = (one for one in self.requirements(markers) if canonicalize_name(one.name) == "torch")
        return next((one for one in found if one.specifier), None)


@dataclass(frozen=True)
class TorchInstall:
    """A torch on `sys.path`."""

    folder: Path  # the folder that holds the folder `torch`
    version: str  # the version in torch/version.py, else that of the distribution
    cuda: Cuda | None  # the CUDA that it was built for, or None
    package: InstalledPackage | None  # its distribution, or None for a folder without metadata

    @property
    def release(self) -> Torch | None:
        """The release; None for a nightly and for a version that cannot be read."""
        return self.base if self.base and not Version(self.version).is_prerelease else None

    @property
    def base(self) -> Torch | None:
        """The release, or for a nightly the release that it precedes."""
        try:
            return Torch.parse(Version(self.version).base_version)
        except (InvalidVersion, UsageError):
            return None

    @property
    def libraries(self) -> Path:
        """The folder of its libraries."""
        return self.folder / "torch" / "lib"


@dataclass(frozen=True)
class Machine:
    """The driver and the GPUs."""

    driver: str = ""  # version of NVIDIA's driver; empty: unknown or none
    gpus: tuple[Gpu, ...] = ()  # the GPUs
    described: bool = False  # a file describes them; they are not those of this machine


@dataclass(frozen=True)
class InstalledEnvironment:
    """An environment and its machine."""

    interpreter: InstalledPython  # its Python
    #: The distributions on `sys.path`, in its order; a name may occur more than once.
    packages: tuple[InstalledPackage, ...]
    torches: tuple[TorchInstall, ...]  # each torch on `sys.path`; Python imports the first
    machine: Machine  # driver and GPUs
    nvcc: str  # version of the nvcc that a build finds, such as 13.0.88; empty without one
    variables: Mapping[str, str]  # environment variables that change what is loaded or built
    conda: Mapping[str, str]  # Conda's packages of this environment, name and version
    platform: Platform  # operating system and processor
    #: Files and folders that an interrupted uninstallation of pip left on `sys.path`: their names begin with `~`.
    leftovers: tuple[Path, ...] = ()
    torch_backends: tuple[Path, ...] = ()  # the files with settings of uv that choose torch's index (`torch-backend`)

    @property
    def torch(self) -> TorchInstall | None:
        """The torch that `import torch` finds."""
        return self.torches[0] if self.torches else None

    @cached_property
    def visible(self) -> dict[str, InstalledPackage]:
        """The first distribution of each name: the one that Python imports."""
        return {name: found[0] for name, found in grouped((one.name, one) for one in self.packages).items()}


def read_environment(python: Path, machine: Machine | None = None) -> InstalledEnvironment:
    """Read the environment of a Python, for this or another machine. Raises UsageError if no Python runs."""
    if (platform := f"linux_{os.uname().machine}") not in list(Platform):
        raise UsageError(f"doctor judges no Python for {platform}, which no cell has", Code.PLATFORM_UNSUPPORTED)
    interpreter = _read_python(python)
    if machine is None:
        rows = nvidia.smi(["index", "name", "compute_cap"])
        gpus = (Gpu(row.get("name", "GPU"), Arch.parse(row["compute_cap"])) for row in rows if "compute_cap" in row)
        machine = Machine(driver_version(), tuple(gpus))
    found = (_package(one, folder) for folder in interpreter.path for one in distributions(path=[str(folder)]))
    packages = tuple(package for package in found if package is not None)
    conda = (file.stem.rsplit("-", 2) for file in sorted((interpreter.prefix / "conda-meta").glob("*-*-*.json")))
    return InstalledEnvironment(
        interpreter=interpreter,
        packages=packages,
        torches=tuple(_torches(interpreter.path, packages)),
        machine=machine,
        nvcc=_nvcc(interpreter),
        variables={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
        conda={name: version for name, version, _ in conda if name},
        platform=Platform(platform),
        leftovers=tuple(left for folder in interpreter.path for left in sorted(folder.glob("~*"))),
        torch_backends=tuple(path for path in uv_files() if path.is_file() and _BACKEND.search(path.read_bytes())),
    )


def _read_python(python: Path) -> InstalledPython:
    """Ask a Python for its version and folders; raises UsageError if it does not run."""
    program = python.absolute() if python.exists() else Path(shutil.which(python) or python)
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
                markers=data["markers"],
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
    files: tuple[str, ...] = ()
    with suppress(OSError, ValueError, csv.Error):  # a damaged RECORD
        # Not `found.files`: since Python 3.12 it leaves out files that were deleted.
        rows = csv.reader((found.read_text("RECORD") or "").splitlines())
        files = tuple(dict.fromkeys(row[0] for row in rows if row and _LIBRARY.search(PurePosixPath(row[0]).name)))
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


def _nvcc(interpreter: InstalledPython) -> str:
    """The version of the nvcc that a build finds: by variables, on PATH, beside the Python, or in the usual folder."""
    search = os.pathsep.join([str(interpreter.executable.parent), os.environ.get("PATH", os.defpath)])
    which = shutil.which("nvcc", path=search)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), which and Path(which).resolve().parents[1]]
    versions = (nvcc_version(Path(home)) for home in (*homes, "/usr/local/cuda") if home)
    return next(filter(None, versions), "")
