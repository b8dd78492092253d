"""What every place of an index can do. Every write is atomic, so a reader never sees a partial object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from builder.errors import UsageError


class Objects(Protocol):
    """Named objects. A name is a relative path with `/`, such as `simple/my-ext/index.html`."""

    def read(self, name: str) -> bytes:
        """Contents of an object; raises FileNotFoundError."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Contents of an object in parts, so that a large one needs little memory; raises FileNotFoundError."""

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Contents of every object directly below a folder, by its last name; empty for a missing folder."""

    def names(self, folder: str) -> list[str]:
        """The last names of the objects and folders directly below a folder, sorted; empty for a missing folder."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace an object."""

    def create(self, name: str, data: bytes | Path) -> bool:
        """Write an object, from bytes or from a file, unless the name exists. Return whether it was written."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""

    def exists(self, name: str) -> bool:
        """Whether an object of this name exists."""

    def age(self, name: str) -> float:
        """Seconds since an object was written; raises FileNotFoundError."""


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name; raises UsageError for a name that leads out of the index or to a hidden file."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or any(part.startswith(".") for part in parts):
        raise UsageError("this name leads out of the index", where=repr(name))
    return parts
