"""What the store holds: each item with its size and its last use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from builder.storage.finished_tasks import FinishedTasks
from builder.storage.item import Item, Kind
from builder.store import BYTECODE, RUN, Store, StoredBuild
from builder.untrusted.json_data import MAX_OWN_JSON, JsonError, read_json, text, texts


@dataclass(frozen=True)
class FolderSize:
    """Bytes of a folder on disk: those that its deletion frees, and those in files that are also linked elsewhere."""

    freed: int
    shared: int


def folder_size(*paths: Path) -> FolderSize:
    """Measure files and folders; a file with several links inside is counted once."""
    links: dict[tuple[int, int], tuple[int, int, int]] = {}
    for path in paths:
        for stat in _stats(path):
            key = (stat.st_dev, stat.st_ino)
            seen = links.get(key, (0, 0, 0))[0]
            links[key] = (seen + 1, stat.st_nlink, stat.st_blocks * 512)
    freed = sum(size for seen, all_links, size in links.values() if seen >= all_links)
    return FolderSize(freed, sum(size for _, _, size in links.values()) - freed)


def _stats(path: Path) -> Iterator[os.stat_result]:
    """The files at and below a path; what is deleted meanwhile is left out."""
    with suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            yield path.lstat()
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _stats(Path(entry.path))
                else:
                    with suppress(OSError):
                        yield entry.stat(follow_symlinks=False)


def store_items(store: Store) -> list[Item]:
    """Everything in the store that can be deleted, except lock files and the locked versions of packages."""
    root = store.root
    notes = _notes_of_builds(FinishedTasks(root))
    items = [_build_item(store, stored, notes.get(stored.digest, ())) for stored in store.builds()]
    known = {item.target for item in items}
    items += [
        _item(
            store,
            Kind.BUILDS,
            path,
            f"{path.name[:16]} (made by a different version of buildfarm)",
            f"builds/{path.name}",
        )
        for path in _entries(root / "builds")
        if f"builds/{path.name}" not in known
    ]
    items += [
        replace(
            _item(store, Kind.ENVIRONMENTS, path, _environment_name(path), f"envs/{path.name}"),
            group="bytecode" if path.name.startswith(BYTECODE) else "",
        )
        for path in _entries(root / "envs")
        if path.is_dir()
    ]
    items += [
        _item(store, Kind.SOURCES, path, path.name if folder == "git" else _file_name(path), RUN)
        for folder in ("sdists", "git", "wheels")
        for path in _entries(root / "sources" / folder)
        if path.is_dir()
    ]
    items += [_item(store, Kind.INVENTORIES, path, path.stem[:-65], RUN) for path in _entries(root / "inventories")]
    if (root / "objects").is_dir():
        items.append(_item(store, Kind.OBJECTS, root / "objects", "compiler cache of local builds", RUN))
    items += [_item(store, Kind.PROOFS, path, path.stem[:16], RUN) for path in _entries(root / "proofs")]
    items += [_item(store, Kind.LOGS, path, path.stem, RUN) for path in _entries(root / "logs")]
    items += [_item(store, Kind.REMOTE, path, path.stem[:40], RUN) for path in _entries(root / "remote")]
    items += [
        _item(store, Kind.RECEIVED, path, _file_name(path), f"received/{path.name}")
        for path in _entries(root / "received")
    ]
    items += [_item(store, Kind.RUNS, path, path.stem, f"runs/{path.name}") for path in _entries(root / "runs")]
    items += [_item(store, Kind.SCRATCH, path, path.name, f"work/{path.name}") for path in _entries(root / "work")]
    return items


def _notes_of_builds(finished: FinishedTasks) -> dict[str, list[str]]:
    """The notes of finished tasks, by the digest of the build that each names."""
    found: dict[str, list[str]] = {}
    for name, build in finished.notes():
        found.setdefault(build, []).append(f"{finished.folder.name}/{name}")
    return found


def _build_item(store: Store, stored: StoredBuild, notes: Iterable[str]) -> Item:
    name, folder = str(stored.record.record.build), stored.wheel.parent
    owned = {f"logs/{name}.log", *notes}
    for facts in folder.glob("facts-*.json"):
        with suppress(OSError, JsonError):
            owned.add(f"proofs/{read_json(facts, lambda data: text(data['sha256']), limit=MAX_OWN_JSON)}.json")
    item = _item(store, Kind.BUILDS, folder, name, f"builds/{folder.name}")
    return replace(item, group=stored.record.record.build.extension, owns=frozenset(owned))


def _item(store: Store, kind: Kind, path: Path, name: str, mark: str) -> Item:
    size = folder_size(path)
    target = path.relative_to(store.root).as_posix()
    return Item(kind, name, target, size.freed, store.last_use(target), size.shared, mark)


def _file_name(folder: Path) -> str:
    """The name of the archive in the folder of a digest."""
    return next((path.name for path in _entries(folder)), folder.name)


def _environment_name(folder: Path) -> str:
    """The torch and the CUDA of an environment, from its locked versions: `torch==2.11.0 nvidia-cuda-nvcc==13.0.88`."""
    with suppress(OSError, JsonError):
        packages = read_json(folder.with_suffix(".json"), lambda data: texts(data["packages"]))
        shown = [package for package in packages if package.startswith(("torch==", "nvidia-cuda-nvcc=="))]
        return " ".join([folder.name, *sorted(shown, reverse=True)])
    return folder.name


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder without hidden files, sorted; none if the folder does not exist."""
    return sorted(path for path in folder.glob("*") if not path.name.startswith(".")) if folder.is_dir() else []
