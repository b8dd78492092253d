"""Which GPU architectures a library holds code for, as NVIDIA's own cuobjdump lists them."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from builder.errors import MissingToolError, UsageError

_PACKAGE = "nvidia-cuda-cuobjdump"
_LISTED = re.compile(r"^(?:ELF|PTX) file\s+\d+:\s.*\.sm_(\d+[af]?)\.(cubin|ptx)$", re.MULTILINE)
#: What cuobjdump says of a library with no code of the kind asked for; its exit status is then 0 or 255.
_NOTHING = ("does not contain device code", "No PTX file found", "No ELF file found")


def find_cuobjdump() -> Path:
    """Where the installed package keeps the program; raises MissingToolError when it is not installed."""
    try:
        files = distribution(_PACKAGE).files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "cuobjdump" and (program := Path(str(file.locate()))).is_file():
            return program
    raise MissingToolError(
        "the GPU code in a wheel cannot be listed without cuobjdump", hints=(f"pip install {_PACKAGE}",)
    )


def list_device_code(program: Path, library: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Machine code and PTX of one library, e.g. (("sm_80", "sm_90a"), ("compute_90",)), sorted by number.

    Raises UsageError when cuobjdump cannot read the library.
    """
    return _list(program, library, "--list-elf"), _list(program, library, "--list-ptx")


def _list(program: Path, library: Path, option: str) -> tuple[str, ...]:
    done = subprocess.run(
        [program, option, library],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode and not any(words in done.stderr for words in _NOTHING):
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UsageError(f"cuobjdump cannot read its GPU code: {said[-1].strip()}", where=library.name)
    return parse_listing(done.stdout)


def parse_listing(text: str) -> tuple[str, ...]:
    """Architectures named in a listing: `… .sm_90a.cubin` is `sm_90a`, `… .sm_90.ptx` is `compute_90`."""
    found = {(number, "sm" if kind == "cubin" else "compute") for number, kind in _LISTED.findall(text)}
    ordered = sorted(found, key=lambda one: (int(one[0].rstrip("af")), one[0]))
    return tuple(f"{prefix}_{number}" for number, prefix in ordered)
