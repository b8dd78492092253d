"""The files of a recipe as one compressed archive: a client sends them to workers, which have no access to its disk."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder.gate.pack import REFERENCES
from builder.images.registry.lock import lock_path
from builder.matrix.config import PathSource, Recipe
from builder.store import Store, write_atomic
from builder.wheels.sources.folder import source_files

#: Bytes of one part. Dask keeps a part in the memory of a worker, and of the scheduler until the run ends.
PART = 8 << 20
#: The image lock file in the archive, beside the recipe's files.
LOCK = "buildfarm.lock"
#: The folder with lock records of environments in the archive.
LOCKS = "locks"


def packed(recipe: Recipe, matrix: Path, store: Store, *, source: bool = True) -> dict[str, bytes]:
    """What a worker needs, in parts of at most PART bytes, each with the name of its content; equal files: equal parts.

    That is cases with their references, patches, the source unless it is not wanted, buildfarm.lock beside `matrix`,
    and the lock records of the store's environments. Raises UsageError for a source folder that does not exist.
    """
    wanted = [*recipe.patches, *([recipe.cases] if recipe.cases else [])]
    wanted += [path for path in (recipe.folder / REFERENCES).rglob("*") if path.is_file()]
    if source and isinstance(recipe.source, PathSource):
        wanted += [path for _, path in source_files(recipe.source.path)]
    kept = {path.relative_to(recipe.folder) for path in wanted if "__pycache__" not in path.parts}
    members = {f"recipe/{name}": recipe.folder / name for name in sorted(kept)}
    if (lock := lock_path(matrix)).is_file():
        members[LOCK] = lock
    members |= {f"{LOCKS}/{path.name}": path for path in sorted((store.root / "envs").glob("*.json"))}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz", preset=1) as archive:
        for name, path in members.items():
            archive.add(path, name, recursive=False, filter=_plain)
    data = stream.getvalue()
    parts = [data[start : start + PART] for start in range(0, len(data), PART)]
    return {f"parcel-{hashlib.sha256(part).hexdigest()[:32]}": part for part in parts}


def unpack(parts: Sequence[bytes], folder: Path) -> Path:
    """Write the files below an empty folder; return the folder of the recipe."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts)), mode="r:xz") as archive:
        archive.extractall(folder, filter="data")
    (folder / "recipe").mkdir(parents=True, exist_ok=True)
    return folder / "recipe"


def moved(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with its folder at another place."""

    def there(path: Path) -> Path:
        return folder / path.relative_to(recipe.folder)

    source = PathSource(there(recipe.source.path)) if isinstance(recipe.source, PathSource) else recipe.source
    return replace(recipe, folder=folder, source=source, patches=tuple(map(there, recipe.patches)))


def locks_in(envs: Path, names: Sequence[str] | None = None) -> dict[str, str]:
    """The lock records in the store's folder `envs`, as text by file name."""
    return {path.name: path.read_text() for path in sorted(envs.glob("*.json")) if names is None or path.name in names}


def keep_locks(envs: Path, locks: Mapping[str, str]) -> None:
    """Write the lock records that the store's folder `envs` lacks."""
    for name, record in locks.items():
        path = envs / Path(name).name
        if not path.exists():
            write_atomic(path, record.encode())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what differs between machines: owner and time."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
