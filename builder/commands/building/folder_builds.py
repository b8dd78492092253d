"""What the store remembers of the folder of a recipe: its wheels and the source files of each.

Other folders may have a recipe of the same name.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from builder.gate.amounts import join_names
from builder.hashing import digest_of
from builder.log import print_line, print_warning
from builder.matrix.config import RECIPE, PathSource, Recipe
from builder.matrix.plan import Build
from builder.publish.dist import is_of
from builder.store import Store, StoredBuild, project_key, write_atomic
from builder.untrusted import JsonError, read_json


class FolderBuilds:
    """The last wheel of each build of a folder with its source files, and the wheels of the folder that are published.

    Source files are known of sources that are folders.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def remember(self, build: Build, recipe: Recipe, digest: str) -> None:
        """Note that the last wheel of this build has this digest; it may have failed a check."""
        write_atomic(self._notes("last", recipe) / str(build), digest.encode(), synced=False)

    def last(self, recipe: Recipe) -> list[StoredBuild]:
        """The last wheel of each build that the store still has, the newest first."""
        notes = sorted(self._notes("last", recipe).glob("*"), key=lambda note: note.stat().st_mtime, reverse=True)
        return [stored for note in notes if (stored := self._store.find(note.read_text()))]

    def remember_published(self, wheel: Path, sha256: str, recipes: Sequence[Recipe]) -> None:
        """Note that this wheel of one of the recipes is published, with the digest of its build.

        Without a build in the store, the sha256 stands for the digest.
        """
        folders = self._store.root.glob(f"builds/*/{glob.escape(wheel.name)}")
        builds = [self._store.find(path.parent.name) for path in folders]
        digest = next((each.digest for each in builds if each and each.sha256 == sha256), sha256)
        for recipe in recipes:
            if recipe.makes(wheel.name.partition("-")[0]):
                write_atomic(self._notes("published", recipe) / wheel.name, digest.encode())

    @contextmanager
    def compiling(self, build: Build, recipe: Recipe, digest: str, files: Mapping[str, bytes]) -> Iterator[None]:
        """Say why the wheel of this digest is compiled again, and whether `publish` will refuse it.

        Afterwards note the source files from which it was made.
        """
        changed = self._changed(build, recipe, files)
        if changed:
            why = f", because these files changed since the last wheel: {join_names(changed)}"
        else:
            why = ": no source file changed; the recipe, the GPU architectures, the tools or buildfarm itself changed"
        if changed is not None:
            print_line(f"{build}: must be compiled again{why}")
        published = [note.read_text() for note in self._notes("published", recipe).glob("*.whl") if is_of(note, build)]
        if any(one != digest for one in published):
            own = isinstance(recipe.source, PathSource)
            cure = f"raise the version in {recipe.folder / RECIPE} and in the source, or " if own else ""
            refused = f"{cure}`publish` will refuse the new wheel if it differs"
            print_warning(f"{build.extension} {build.version} is already published; {refused}")
        yield
        if files:
            note = self._notes("sources/last", recipe) / f"{build}.json"
            write_atomic(note, json.dumps(_digests(files)).encode())

    def _notes(self, kind: str, recipe: Recipe) -> Path:
        return self._store.root / kind / project_key(recipe.folder)

    def _changed(self, build: Build, recipe: Recipe, files: Mapping[str, bytes]) -> list[str] | None:
        """The source files that changed since the last wheel; None if that is not known."""
        try:
            before: dict[str, Any] = read_json(self._notes("sources/last", recipe) / f"{build}.json", dict)
        except (OSError, JsonError):
            return None
        now = _digests(files)
        return sorted(name for name in {*before, *now} if before.get(name) != now.get(name)) if now else None


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest_of(line.hex()) for name, line in files.items()}
