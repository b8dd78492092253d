"""The Pythons of this machine: path, exact version, and whether their headers are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.matrix.axes import Python
from builder.wheels.toolchain.uv import find_uv

_PROBE = (
    "import os, platform, sysconfig\n"
    "print(platform.python_version(), bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    " os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine."""

    #: Its executable.
    path: Path
    #: Its exact version, `3.12.1`.
    version: str
    #: Whether Python.h is installed, which extensions of the class `cpython` need.
    headers: bool


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
        suffix = "t" if python.free_threaded else ""
        named = re.compile(rf"{python.major}\.{python.minor}\.(\d+){suffix}")
        found = [(int(m[1]), folder) for folder in root.iterdir() if (m := named.fullmatch(folder.name))]
        for _, folder in sorted(found, reverse=True):
            yield folder / "bin" / "python"
    # The Python that uv downloaded may have headers that the first one lacks.
    for options in ((), ("--managed-python",)):
        argv = [find_uv(), "python", "find", "--no-python-downloads", "--no-project", *options, f"{python}"]
        answer = subprocess.run(argv, capture_output=True, text=True, check=False)
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
    if not version.startswith(f"{python.major}.{python.minor}."):
        return None
    if (free_threaded == "True") is not python.free_threaded:
        return None
    return Interpreter(path, version, headers == "True")


def header_hint(python: Python) -> str:
    """How to install the headers of a Python of the system."""
    return f"`apt-get install python{python.major}.{python.minor}-dev` (or your system's package)"
