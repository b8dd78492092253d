"""Which files of two wheels differ. Nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.wheelfile.archive import WheelFile


@dataclass(frozen=True)
class Difference:
    """One difference between two wheels."""

    #: Path inside the wheel; empty for the archive itself.
    member: str
    #: The difference, as text.
    what: str

    def __str__(self) -> str:
        """One line: `pkg/_C.so: differs`."""
        return f"{self.member or 'the archive'}: {self.what}"


def differences(first: Path, second: Path) -> list[Difference]:
    """Every difference, sorted by path; empty when the wheels are equal bit for bit.

    Raises DamagedWheelError for a file that cannot be read.
    """
    found = [Difference("", f"named {first.name} and {second.name}")] if first.name != second.name else []
    if first.read_bytes() == second.read_bytes():
        return found
    one, two = _members(first), _members(second)
    for path in sorted(one.keys() | two.keys()):
        if path not in two or path not in one:
            found.append(Difference(path, f"only in the {'first' if path in one else 'second'}"))
        elif one[path] != two[path]:
            found.append(Difference(path, "differs"))
    if not found or list(one) != list(two):
        how = "the order of its files" if list(one) != list(two) else "dates, modes or compression of its files"
        found.append(Difference("", f"differs in {how}"))
    return found


def _members(wheel: Path) -> dict[str, bytes]:
    """Contents by path, in the order of the archive."""
    with WheelFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.names}
