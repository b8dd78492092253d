"""What the store remembers of the folder of a recipe: its wheels and the source files of each.

Other folders may have a recipe of the same name.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from builder.formats import digest_of
from builder.gate.amounts import join_names
from builder.log import print_line
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import Store, StoredBuild, project_key, write_atomic
from builder.untrusted import known_json


def remember(store: Store, build: Build, recipe: Recipe, digest: str) -> None:
    """Note that the last wheel of this build has this digest; it may have failed a check."""
    write_atomic(_notes(store, "last", recipe) / str(build), digest.encode())


def last_wheels(store: Store, recipe: Recipe) -> list[StoredBuild]:
    """The last wheel of each build that the store still has, the newest first."""
    notes = sorted(_notes(store, "last", recipe).glob("*"), key=lambda note: note.stat().st_mtime, reverse=True)
    return [stored for note in notes if (stored := store.find(note.read_text()))]


@contextmanager
def compiling(store: Store, build: Build, recipe: Recipe, files: Mapping[str, bytes]) -> Iterator[None]:
    """Say why a wheel is compiled again; afterwards note the source files from which it was made."""
    note = _notes(store, "sources/last", recipe) / f"{build}.json"
    now = {name: digest_of(line.hex()) for name, line in files.items()}
    if now and (before := known_json(note, dict)) is not None:
        why = ": no source file changed; the recipe, the GPU architectures, the tools or buildfarm itself changed"
        if changed := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
            why = f", because these files changed since the last wheel: {join_names(changed)}"
        print_line(f"{build}: must be compiled again{why}")
    yield
    if now:
        write_atomic(note, json.dumps(now).encode())


def _notes(store: Store, kind: str, recipe: Recipe) -> Path:
    return store.root / kind / project_key(recipe.folder)
