"""Measure which torch release first exports each C function, and write `shims.yaml` to stdout.

`python -m tools.make_shims WHEEL_OR_LIB…` takes torch wheels or unpacked `torch/lib` folders, one for
each series. The headers show when a function was declared; only the libraries show when it can be linked.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import yaml

from builder.errors import Code, UsageError
from builder.matrix.axes import Torch
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import SHIM
from builder.wheelfile.elf import read_elf

#: Class of a shim by the library that exports it: a CPU-only torch has no libtorch_cuda.
_LIBRARIES = {
    "libtorch_cpu.so": "cpu",
    "libc10.so": "cpu",
    "libtorch_cuda.so": "cuda",
    "libc10_cuda.so": "cuda",
}


def measure(lib: Path) -> dict[str, set[str]]:
    """Shims that the libraries of one `torch/lib` folder export, by class (`cpu`, `cuda`)."""
    found: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    for name, kind in _LIBRARIES.items():
        if not (lib / name).is_file() or (elf := read_elf(lib / name)) is None:
            raise UsageError(
                f"{name} is missing; pass a torch wheel with CUDA or its torch/lib", Code.VALUE_INVALID, where=str(lib)
            )
        found[kind].update(symbol for symbol in elf.defined if SHIM.fullmatch(symbol))
    found["cuda"] -= found["cpu"]
    return found


def tabulate(measured: dict[Torch, dict[str, set[str]]]) -> dict[str, dict[str, dict[str, list[str]]]]:
    """Names by the series that first exports them, and by the first series that no longer exports them.

    The oldest series is the floor of the measurement: "since 2.9" then means 2.9 or older.
    """
    since: dict[str, dict[str, list[str]]] = {}
    gone: dict[str, dict[str, list[str]]] = {}
    before: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    known: dict[str, set[str]] = {"cpu": set(), "cuda": set()}
    for torch in sorted(measured):
        for kind, names in measured[torch].items():
            if new := sorted(names - known[kind]):
                since.setdefault(torch.series, {})[kind] = new
            if lost := sorted(before[kind] - names):
                gone.setdefault(torch.series, {})[kind] = lost
            known[kind] |= names
            before[kind] = names
    return {"since": since, "gone": gone}


@contextmanager
def _lib_folder(path: Path) -> Iterator[tuple[Torch, Path]]:
    if path.is_dir():
        version = re.search(r"__version__ = '(\d+\.\d+\.\d+)", (path.parent / "version.py").read_text())
        if version is None:
            raise UsageError(
                "the parent folder has no version.py with torch's version", Code.VALUE_INVALID, where=str(path)
            )
        yield Torch.parse(version[1]), path
        return
    with tempfile.TemporaryDirectory(prefix="buildfarm-shims-") as folder, WheelFile(path) as wheel:
        for name in _LIBRARIES:
            (Path(folder) / name).write_bytes(wheel.read(f"torch/lib/{name}"))
        yield Torch.parse(re.split(r"[-+]", path.name)[1]), Path(folder)


def main(paths: list[str]) -> None:
    """Measure every path and write the table."""
    measured = {}
    for path in paths:
        with _lib_folder(Path(path)) as (torch, lib):
            measured[torch] = measure(lib)
    versions = ", ".join(str(torch) for torch in sorted(measured))
    sys.stdout.write(
        "# For each C function, the torch series that first exports it, and the first series that no longer does.\n"
        f"# Measured by tools/make_shims.py on {datetime.now(UTC):%Y-%m-%d}\n"
        f"# from the linux x86_64 wheels of torch {versions}.\n"
        "# No older series was measured. A function of the oldest series here may exist in older series too.\n"
    )
    yaml.safe_dump(tabulate(measured), sys.stdout, width=110, default_flow_style=None, sort_keys=False)


if __name__ == "__main__":
    main(sys.argv[1:])
