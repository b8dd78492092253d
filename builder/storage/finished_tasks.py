"""Which stored build is the answer to a task of `build --scheduler`: notes in the store's folder `remote/`."""

from __future__ import annotations

import json
import os
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
        path = self.folder / f"{task}.json"
        with suppress(OSError, JsonError):
            os.utime(path)  # `store prune` deletes what was not used
            return read_json(path, lambda data: text(data["digest"]))
        return None
