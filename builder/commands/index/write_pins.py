"""`buildfarm resolve --write`: pins in a pyproject.toml, a constraints file or a lock. The name decides the kind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from builder.errors import UsageError
from builder.publish.index.pins.constraints import pin_constraints
from builder.publish.index.pins.lock import make_lock
from builder.publish.index.pins.pins import Pins
from builder.publish.index.pins.uv_project import pin_project
from builder.publish.index.resolve import Target
from builder.publish.unchanged import write_if_changed

_HEADER = "# buildfarm resolve "


class PinFile(Enum):
    """The kinds of files, by a pattern of their names."""

    PROJECT = r"pyproject\.toml"
    CONSTRAINTS = r"constraints.*\.txt"
    LOCK = r"pylock(\.[^.]+)?\.toml"
    REQUIREMENTS = r"requirements.*\.txt"

    @property
    def is_lock(self) -> bool:
        """Whether the file is a lock with hashes."""
        return self in {PinFile.LOCK, PinFile.REQUIREMENTS}


def check_pin_file(file: Path) -> PinFile:
    """The kind of a file; raises UsageError for an unknown name, and for a file that cannot be written."""
    kind = next((kind for kind in PinFile if re.fullmatch(kind.value, file.name)), None)
    if kind is None:
        raise UsageError(
            "the name must be pyproject.toml, constraints.txt, requirements.txt or pylock.toml",
            where=f"--write {file}",
            hints=["a word may follow, as in constraints-cu126.txt or pylock.cu126.toml"],
        )
    if not file.exists() and kind is PinFile.PROJECT:
        raise UsageError("there is no such file", where=str(file), hints=["run `uv init --bare` first"])
    if not file.parent.is_dir():
        raise UsageError("there is no such folder", where=str(file.parent))
    if file.exists() and not file.stat().st_mode & 0o222:
        raise UsageError("this file is read-only", where=str(file))
    if kind.is_lock and file.exists() and not _text(file).startswith(_HEADER):
        raise UsageError(
            "`buildfarm resolve` did not write this file, and a lock would replace all of it",
            where=str(file),
            hints=["name a new file, or delete this one"],
        )
    return kind


def write_pins(file: Path, kind: PinFile, pins: Pins, target: Target, words: Sequence[str]) -> None:
    """Write the pins into a file, atomically, or leave it as it is if it has them.

    `words` are the arguments of `buildfarm resolve`, which a lock names. Raises UsageError for a file that does not
    allow it, MissingToolError if uv cannot make a lock.
    """
    old = _text(file) if file.exists() else ""
    if kind is PinFile.PROJECT:
        new = pin_project(old, pins, str(file))
    elif kind is PinFile.CONSTRAINTS:
        new = pin_constraints(old, pins)
    else:
        header = f"{_HEADER}{shlex.join([*words, '--write', file.name])}\n"
        new = header + make_lock(file.name, pins, target.python, target.glibc, old)
    write_if_changed(file.resolve(), new.encode())


def pin_commands(file: Path, kind: PinFile, pins: Pins, target: Target) -> dict[str, str]:
    """The commands that install from a written file, by installer."""
    name = str(file)
    if kind is PinFile.PROJECT:
        folder = str(file.parent)
        python = ["--python", str(target.python)]  # else uv may take a Python for which the wheel is not
        return {"uv": shlex.join(["uv", "sync", *python, *([] if folder == "." else ["--project", folder])])}
    if kind is PinFile.CONSTRAINTS:
        return {"pip": shlex.join(["pip", "install", "-c", name, pins.project, "torch"])}
    hashes = ["--require-hashes"] if kind is PinFile.REQUIREMENTS else []
    return {
        "pip": shlex.join(["pip", "install", *hashes, "-r", name]),
        "uv": shlex.join(["uv", "pip", "install", *hashes, "-r", name]),
    }


def pin_notes(file: Path, kind: PinFile, pins: Pins) -> list[str]:
    """What was written, and where to put the credentials of the index, which no file gets."""
    content = "the hash of each file" if kind.is_lock else "the versions and the index"
    notes = [f"{file} has {content}"]
    if pins.has_credentials and kind is PinFile.PROJECT:
        variable = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', pins.index_name.upper())}"
        notes.append(f"it has no credentials: set {variable}_USERNAME and {variable}_PASSWORD")
    elif pins.has_credentials:
        notes.append("it has no credentials: write them to ~/.netrc")
    return notes


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        raise UsageError("this file is not UTF-8 text", where=str(file)) from None
    except OSError as error:
        raise UsageError(f"this file cannot be read: {error.strerror}", where=str(file)) from None
