"""Which wheels of this store are published, so that `build` can warn before it compiles another one of their name."""

from __future__ import annotations

import glob
from pathlib import Path

from builder.matrix.config import RECIPE, PathSource, Recipe
from builder.matrix.plan import Build
from builder.publish.dist import is_of
from builder.store import Store, write_atomic


class PublishedBuilds:
    """The file names of published wheels, each with the digest of its build, in the folder `published` of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "published"

    def remember(self, wheel: Path, sha256: str) -> None:
        """Note that this wheel is published. Without a build in the store, the sha256 stands for the digest."""
        folders = self._store.root.glob(f"builds/*/{glob.escape(wheel.name)}")
        builds = [self._store.find(path.parent.name) for path in folders]
        digest = next((each.digest for each in builds if each and each.sha256 == sha256), sha256)
        write_atomic(self._folder / wheel.name, digest.encode())

    def warning(self, build: Build, recipe: Recipe, digest: str) -> str:
        """Why `publish` will refuse the wheel of this digest: another one has its name; empty if none has."""
        if not any(is_of(note, build) and note.read_text() != digest for note in self._folder.glob("*.whl")):
            return ""
        own = isinstance(recipe.source, PathSource)
        cure = f"raise the version in {recipe.folder / RECIPE} and in the source, or " if own else ""
        published = f"{build.extension} {build.version} is already published"
        return f"{published}; {cure}`publish` will refuse the new wheel if it differs"
