"""Which stored build is the answer to a task of `build --scheduler`: notes in the store's folder `remote/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from builder.store import write_atomic
from builder.untrusted.json_data import JsonError, read_json, text


class FinishedTasks:
    """The notes of one store. Client and workers keep them, each in its own store."""

    def __init__(self, store: Path) -> None:
        """`store` is the store's folder."""
        self.folder = store / "remote"

    def remember(self, task: str, build: str) -> None:
        """Note the digest of the build that a task made; both are digests."""
        write_atomic(self.folder / f"{task}.json", json.dumps({"digest": build}).encode())

    def build_of(self, task: str) -> str | None:
        """The digest of the build that a task made, or None."""
        return _build_in(self.folder / f"{task}.json")

    def notes(self) -> Iterator[tuple[str, str]]:
        """The file name of each note, and the digest of the build in it."""
        for path in sorted(self.folder.glob("*.json")):
            if build := _build_in(path):
                yield path.name, build


def _build_in(path: Path) -> str | None:
    with suppress(OSError, JsonError):
        return read_json(path, lambda data: text(data["digest"]))
    return None
