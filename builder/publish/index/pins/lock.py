"""A lock with the hash of each file, made by uv: a requirements file for pip, or pylock.toml (PEP 751)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.errors import MissingToolError, UsageError
from builder.matrix.axes import Python
from builder.publish.index.pins.pins import Pins, without_credentials
from builder.wheels.toolchain.uv import cause_of, compile_captured, index_setting

#: The versions of glibc that `uv pip compile --python-platform` knows.
_GLIBC = (17, 28, *range(31, 41))


def make_lock(name: str, pins: Pins, python: Python, glibc: tuple[int, int] | None, old: str) -> str:
    """The text of a lock for one Python and machine with the pins and everything that they require.

    `name` is the name of the file, which decides its format. Versions in the `old` text stay if they fit.

    Raises UsageError for a free-threaded Python, MissingToolError if uv does not find each package.
    """
    if python.free_threaded:
        raise UsageError(
            "uv does not lock for a free-threaded Python",
            where=f"--python {python}",
            hints=["use --write pyproject.toml and `uv lock`, or --write constraints.txt"],
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        if old:
            file.write_text(old)
        done = compile_captured(
            f"{pins.requirement}\n{pins.torch}\n",
            [
                f"--output-file={file}",
                "--generate-hashes",
                "--emit-index-url",
                f"--python-version={python}",
                f"--python-platform={_platform(pins.machine, glibc)}",
            ],
            folder=Path(folder),
            index=[url for url in (pins.index, pins.torch_index) if url],
        )
        if done.returncode:
            detail = cause_of(done.stderr) or (done.stderr.strip().splitlines() or ["uv printed no reason"])[-1]
            raise MissingToolError(
                f"uv cannot lock the packages: {without_credentials(detail)}",
                where=f"{pins.requirement} {pins.torch}",
                hints=[f"the default index is {index_setting()}"],
            )
        return without_credentials(file.read_text())


def _platform(machine: str, glibc: tuple[int, int] | None) -> str:
    """uv's name of the platform; without a version of glibc, the newest that uv knows, so that every wheel fits."""
    minor = max((known for known in _GLIBC if glibc is None or (2, known) <= glibc), default=_GLIBC[0])
    return f"{machine}-manylinux_2_{minor}"
