"""Containers that a killed run left: known by the mark on them, ended once nobody holds the lock of their job."""

from __future__ import annotations

from builder.images.engine import Engine
from builder.store import Store


def end_abandoned(engine: Engine, store: Store, label: str) -> list[str]:
    """End this store's containers whose job nobody works on; returns their ids.

    `label` is the one whose value is a job's mark (`Store.mark`). Another store's containers are left alone. Raises
    MissingToolError when the engine does not answer.
    """
    own = store.mark("")
    ended: list[str] = []
    for mark in sorted(mark for mark in engine.marks(label) if mark.startswith(own)):
        with store.lock(mark.removeprefix(own), wait=False) as mine:
            if mine:
                ended += engine.reap(f"{label}={mark}")
    return ended
