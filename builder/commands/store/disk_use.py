"""`buildfarm store du`: what takes how much disk space."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from builder.errors import BuildfarmError
from builder.images.engine import Engine
from builder.storage.engine_storage import EngineStorage
from builder.storage.inventory import folder_size, store_items
from builder.storage.item import Item
from builder.store import Store
from builder.wheels.toolchain.uv import find_uv


@dataclass(frozen=True)
class DiskUse:
    """What takes disk space.

    Attributes:
        items: of the store and of the container engine.
        others: sizes of caches that buildfarm shares with other programs, in bytes.
        notes: why something is missing.

    """

    items: tuple[Item, ...]
    others: dict[str, int]
    notes: tuple[str, ...]


def disk_use(store: Store) -> DiskUse:
    """Measure the store, the images and volumes of buildfarm, and the caches of uv and of the engine."""
    items, others, notes = store_items(store), _uv_folders(), []
    engine, problem = open_engine(store)
    if engine:
        try:
            items += engine.items()
            others["build cache of the container engine (`docker builder prune`)"] = engine.build_cache()
        except BuildfarmError as error:
            problem = str(error)
    if problem:
        notes.append(f"images and volumes are not listed: {problem}")
    return DiskUse(tuple(items), others, tuple(notes))


def open_engine(store: Store) -> tuple[EngineStorage | None, str]:
    """The container engine's storage, or None and the reason why it cannot be read."""
    engine = Engine()
    if problem := engine.problem():
        return None, problem.sentence
    return EngineStorage(engine, store), ""


def _uv_folders() -> dict[str, int]:
    """Sizes of uv's cache and of the Pythons that uv installed."""
    found = {}
    for words, name in (
        (("cache", "dir"), "uv's cache (`uv cache prune`)"),
        (("python", "dir"), "Pythons installed by uv (`uv python uninstall VERSION`)"),
    ):
        answer = subprocess.run([find_uv(), *words], capture_output=True, text=True, check=False)
        folder = Path(answer.stdout.strip())
        if answer.returncode == 0 and answer.stdout.strip() and folder.is_dir():
            size = folder_size(folder)
            if size.freed + size.shared > 2**20:
                found[f"{name} in {folder}"] = size.freed + size.shared
    return found
