"""The Pythons, CUDA toolkits and C++ compilers of this machine, or why none of them fits. uv downloads Pythons."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from builder.errors import Code, MissingToolError, mask_credentials
from builder.images.network import package_settings
from builder.log import print_line
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.compat import Compat
from builder.process import log_size, run, text_since
from builder.store import Store
from builder.wheels.toolchain.uv import cause_of, find_uv, network_hints, uv_command, uv_variables

#: uv's own setting; `automatic` is its default.
SETTING = "UV_PYTHON_DOWNLOADS"
_URL = re.compile(r"Failed to download `([^`]+)`")
_PROBE = (
    "import os, platform, sysconfig\n"
    "print(platform.python_version(), bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    " os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
)
#: Where NVIDIA's installer puts toolkits.
USUAL_HOMES = ("/usr/local/cuda-{cuda}", "/usr/local/cuda")


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine."""

    path: Path  # its executable
    version: str  # its exact version, `3.12.1`
    headers: bool  # whether Python.h is installed, which extensions of the class `cpython` need


@cache
def find_python(python: Python) -> Interpreter | None:
    """An interpreter of this version, preferably with headers; None if this machine has none."""
    best: Interpreter | None = None
    for path in _candidates(python):
        found = _probe(path, python)
        if found and found.headers:
            return found
        best = best or found
    return best


def _candidates(python: Python) -> Iterator[Path]:
    """Possible paths: this interpreter, pyenv's (uv finds these only with an active shim), what uv finds."""
    if sys.version_info[:2] == (python.major, python.minor):
        yield Path(sys.executable)
        yield Path(getattr(sys, "_base_executable", sys.executable))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if root.is_dir():
        named = re.compile(rf"{re.escape(python.series)}\.(\d+){'t' * python.free_threaded}")
        found = [(int(m[1]), folder) for folder in root.iterdir() if (m := named.fullmatch(folder.name))]
        for _, folder in sorted(found, reverse=True):
            yield folder / "bin" / "python"
    # The Python that uv downloaded may have headers that the first one lacks.
    for options in ((), ("--managed-python",)):
        argv = [find_uv(), "python", "find", "--no-python-downloads", "--no-project", *options, f"{python}"]
        answer = subprocess.run(argv, env=uv_variables(), capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())


def _probe(path: Path, python: Python) -> Interpreter | None:
    if not path.exists():
        return None
    try:
        answer = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, check=False)
    except OSError:  # not a program, or built for another processor
        return None
    if answer.returncode != 0 or len(words := answer.stdout.split()) != 3:
        return None
    version, free_threaded, headers = words
    fits = version.startswith(f"{python.series}.") and (free_threaded == "True") is python.free_threaded
    return Interpreter(path, version, headers == "True") if fits else None


def header_hint(python: Python) -> str:
    """How to install the headers of a Python of the system."""
    return f"`apt-get install python{python.series}-dev` (or your system's package)"


class Pythons:
    """The Pythons of this machine; uv downloads the others into its own folder, where every uv of the user finds them.

    A download that failed is not tried again by the same object.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._setting = package_settings().get(SETTING, "automatic")
        self._failures: dict[Python, MissingToolError] = {}
        self._lock = threading.Lock()

    def obtain(self, python: Python, *, headers: bool = False) -> Interpreter:
        """An interpreter of this version, downloaded if necessary; with `headers`, one that has Python.h.

        Raises MissingToolError when there is none and none can be downloaded.
        """
        with self._lock:
            found = find_python(python)
            if found and (found.headers or not headers):
                return found
            if python not in self._failures:
                missing = f"no Python {python} on this machine"
                if found:
                    missing = f"{found.path} (Python {python}) has no headers (Python.h), which the build needs"
                reason, hints = self._download(python, missing)
                if not reason:
                    find_python.cache_clear()
                    if (made := find_python(python)) and (made.headers or not found):
                        return made
                hints += [
                    f"install Python {python} in a different way (a package of your system, pyenv) and put it on PATH",
                    "select the cells of a different Python with `--python X.Y`",
                ]
                self._failures[python] = MissingToolError(
                    f"{missing}, and {reason or 'the Python that uv downloaded does not run here'}",
                    Code.PYTHON_MISSING,
                    hints=[header_hint(python), *hints] if found else hints,
                )
            raise self._failures[python]

    def _download(self, python: Python, missing: str) -> tuple[str, list[str]]:
        """Download an interpreter; return why that is not possible, or "", and what to do about it."""
        if self._setting != "automatic":
            return f"downloads of Pythons are forbidden ({SETTING}={self._setting})", [
                f"allow the download: unset {SETTING}",
                f"download this Python with `{SETTING}=manual {uv_command()} python install {python}`",
            ]
        print_line(f"{missing}: uv downloads a Python with headers ({SETTING}=never forbids this)")
        log = self._store.log("pythons")
        start = log_size(log)
        variables = {name: value for name, value in uv_variables().items() if name != SETTING}
        variables.setdefault("UV_HTTP_RETRIES", "1")  # the default of uv, 3, takes 9 seconds without a network
        argv = [str(find_uv()), "python", "install", "--no-bin", str(python)]
        if run(argv, log=log, owner=self._store.owner("pythons"), env=variables) == 0:
            return "", [f"the full output is in {log}"]
        output = text_since(log, start)
        if "No download found" in output:
            update = shlex.join([str(find_uv()), "pip", "install", "--python", sys.executable, "--upgrade", "uv"])
            hint = f"if this Python is newer than uv, update uv with `{update}`"
            return f"uv {metadata.version('uv')} offers no Python {python} for download", [hint]
        url, cause = _URL.search(output), cause_of(output)
        source = f" from {mask_credentials(url[1]).rpartition('/')[0]}" if url else ""
        mirror = "set UV_PYTHON_INSTALL_MIRROR to a mirror of python-build-standalone that this machine can reach"
        hints = [*network_hints(), f"{mirror} (https:// or file://)"]
        return f"uv cannot download a Python with headers{source}{f': {cause}' if cause else ''}", hints


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit."""

    home: Path | None  # its root folder; None: it is installed from the package index into the build's environment
    version: str  # nvcc's version for a toolkit on disk (`12.4.131`), else the requested minor version (`13.0`)
    requested_cuda: Cuda | None = None  # the requested CUDA, if the toolkit has another minor version; otherwise None


@dataclass(frozen=True)
class HostCompiler:
    """A C and C++ compiler pair that nvcc accepts."""

    cc: str
    cxx: str
    version: str


def find_toolkit(cuda: Cuda, *, minor_mismatch: bool) -> Toolkit:
    """A toolkit for this CUDA: on disk, else from the package index, else with `minor_mismatch` another minor on disk.

    Raises MissingToolError, whose hints name every way to get one.
    """
    on_disk = list(_on_disk(cuda))
    for home, version in on_disk:
        if Cuda.of_toolkit(version) == cuda:
            return Toolkit(home, version)
    first = Compat.load().first_packaged_toolkit
    if cuda >= first:
        return Toolkit(None, str(cuda))
    same_major = [(home, version) for home, version in on_disk if version.split(".")[0] == str(cuda.major)]
    if minor_mismatch and same_major:
        home, version = same_major[0]
        return Toolkit(home, version, requested_cuda=cuda)
    found = next((f"the CUDA {version} at {home}" for home, version in same_major), "")
    other = found or f"a CUDA {cuda.major}.x toolkit in CUDA_HOME"
    ways = [
        f"install the CUDA {cuda} toolkit and set CUDA_HOME to its root folder (or put its nvcc on PATH)",
        f"with `--allow-cuda-minor-mismatch`, compile with {other}; the wheel records this",
        "pass `--executor docker` to compile in a container, whose image has the toolkit",
        f"build for CUDA {first} or later, whose toolkit is on the package index (`--torch 2.11 --cuda {first}`)",
    ]
    raise MissingToolError(f"no CUDA {cuda} toolkit on this machine", Code.TOOLKIT_MISSING, hints=ways)


def _on_disk(cuda: Cuda) -> Iterator[tuple[Path, str]]:
    """Root folder and nvcc version of each toolkit on this machine; CUDA_HOME comes first."""
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    homes += [Path(home.format(cuda=cuda)) for home in USUAL_HOMES]
    if nvcc := shutil.which("nvcc"):
        homes.append(Path(nvcc).resolve().parent.parent)
    seen: set[Path] = set()
    for home in homes:
        if home in seen:
            continue
        seen.add(home)
        if version := nvcc_version(home):
            yield home, version


@cache
def nvcc_version(home: Path) -> str:
    """The version of the nvcc in a toolkit's root folder, `12.4.131`; empty without an nvcc that runs."""
    nvcc = home / "bin" / "nvcc"
    if not nvcc.exists():
        return ""
    try:
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # not a program, or built for another processor
        return ""
    match = re.search(r"V(\d+\.\d+\.\d+)", answer.stdout)
    return match[1] if match else ""


def find_host_compiler(cuda: Cuda, torch: Torch | None = None) -> HostCompiler:
    """A compiler that nvcc and torch's headers accept: CXX, else g++, else the newest accepted g++-N.

    `cuda` is the toolkit's version; its minor version may differ from that of the build. Raises MissingToolError when
    there is none.
    """
    limit: int | None = Compat.load().toolkit(cuda).gcc_max
    oldest, accepted = 0, f"nvcc {cuda} accepts gcc up to {limit}"
    if torch is not None:
        oldest, limit = Compat.load().gcc_range(torch, cuda)
        accepted = f"nvcc {cuda} with torch {torch} accepts gcc {oldest} to {limit}"
    chosen = os.environ.get("CXX")
    candidates = [chosen] if chosen else ["g++", *(f"g++-{n}" for n in range(limit or 20, max(oldest, 7) - 1, -1))]
    refused: list[str] = []
    for cxx in candidates:
        found = _compiler(cxx)
        if found is None:
            continue
        if "clang" in cxx or oldest <= int(found.version.split(".")[0]) <= (limit or sys.maxsize):
            return found
        refused.append(f"{cxx} is {found.version}")
    if refused:
        raise MissingToolError(
            f"{accepted}; {', '.join(refused)}",
            Code.COMPILER_UNSUITABLE,
            hints=[f"`apt-get install g++-{limit}` (or your system's package), or set CC and CXX to an accepted gcc"],
        )
    raise MissingToolError(
        f"no C++ compiler: CXX is {chosen}, which does not run" if chosen else "no C++ compiler on PATH",
        Code.COMPILER_MISSING,
        hints=["`apt-get install g++` (or your system's package), or set CC and CXX"],
    )


@cache
def _compiler(cxx: str) -> HostCompiler | None:
    path = shutil.which(cxx)
    if path is None:
        return None
    answer = subprocess.run([path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout[:1].isdigit():
        return None
    cc = os.environ.get("CC") or cxx.replace("clang++", "clang").replace("g++", "gcc")
    return HostCompiler(shutil.which(cc) or cc, path, answer.stdout.strip())
