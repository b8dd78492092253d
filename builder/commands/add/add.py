"""`buildfarm add`: pin a source, inspect it, write its extension.yaml, and add it to matrix.yaml."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.commands.axes import new_axes
from builder.commands.folders import open_store
from builder.errors import UsageError
from builder.hashing import digest_of
from builder.log import print_line
from builder.matrix.axes import Arch
from builder.matrix.config import RECIPE, PathSource, Recipe, Selection
from builder.matrix.load import load_matrix, load_recipe, load_recipes
from builder.recipes.added import Added
from builder.recipes.fetch import PinnedSource, pin, unpack_source
from builder.recipes.inspection.draft_recipe import inspect_source
from builder.recipes.matrix_file import add_extension, create_matrix
from builder.recipes.recipe_file import recipe_text
from builder.recipes.reference import parse_reference
from builder.store import Store, write_atomic


@dataclass(frozen=True)
class AddOptions:
    """The options of one `buildfarm add`.

    Attributes:
        source: project, URL or folder, as the user gave it.
        matrix: the file matrix.yaml; it is created if it does not exist.
        select: the versions of a new matrix.yaml.
        store: its folder, or None for the user's default store.
        archs: GPU architectures of a new matrix.yaml; without any, it has no key `archs`.

    """

    source: str
    matrix: Path = Path("matrix.yaml")
    select: Selection = field(default_factory=Selection)
    store: Path | None = None
    archs: tuple[Arch, ...] = ()


def run_add(options: AddOptions) -> Added:
    """Add a source to the project of a matrix.yaml.

    Raises UsageError if the source cannot be built or the project has a different extension of this name, and
    MissingToolError without network or git.
    """
    known = load_recipes(load_matrix(options.matrix)) if options.matrix.exists() else ()
    pinned = pin(parse_reference(options.source))
    if same := next((recipe for recipe in known if recipe.source == pinned.source), None):
        return Added(same, pinned, options.matrix, axes=None, draft=None, listed=True)
    # Before anything is written: it may raise.
    axes = None if options.matrix.exists() else replace(new_axes(options.select), archs=options.archs)
    home = options.matrix.absolute().parent
    if isinstance(pinned.source, PathSource) and (pinned.source.path / RECIPE).is_file():
        folder, draft = pinned.source.path, None
        recipe = load_recipe(folder)
        _refuse_taken(recipe.name, None, known, options)
    else:
        with _unpacked(pinned, open_store(options.store)) as tree:
            draft = inspect_source(pinned, tree)
        folder = pinned.source.path if isinstance(pinned.source, PathSource) else home / "extensions" / draft.name
        _refuse_taken(draft.name, folder, known, options)
        recipe = _write_recipe(folder, recipe_text(draft, f"buildfarm add {options.source}"))
    entry = Path(os.path.relpath(folder, home)).as_posix()
    if axes:
        create_matrix(options.matrix, entry, axes)
    else:
        add_extension(options.matrix, entry)
    return Added(recipe, pinned, options.matrix, axes, draft)


@contextmanager
def _unpacked(pinned: PinnedSource, store: Store) -> Iterator[Path]:
    """Yield a folder with the source; a folder of the user is inspected where it is."""
    if isinstance(pinned.source, PathSource):
        yield pinned.source.path
        return
    print_line(f"inspecting {pinned.label}")
    with store.work(f"add-{digest_of(str(pinned.source))[:12]}") as scratch:
        tree = scratch / "source"
        tree.mkdir()
        unpack_source(pinned, tree, cache=store.root / "sources")
        yield tree


def _refuse_taken(name: str, folder: Path | None, known: tuple[Recipe, ...], options: AddOptions) -> None:
    """Raise UsageError if an extension has this name, or if `folder` has a recipe."""
    taken = next((each for each in known if canonicalize_name(each.name) == canonicalize_name(name)), None)
    place = taken.folder if taken else folder
    if place and (place / RECIPE).exists():
        version = f" {taken.version}" if taken else ""
        raise UsageError(
            f"a recipe for {name}{version} already exists",
            where=str(place / RECIPE),
            hints=[
                f"to build a different source, change `source` and `version` in {place / RECIPE}",
                f"delete {place} and its entry in {options.matrix}, and run the command again",
            ],
        )


def _write_recipe(folder: Path, text: str) -> Recipe:
    """Write extension.yaml and read it back; a recipe that cannot be read is not kept."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECIPE
    write_atomic(path, text.encode())
    try:
        return load_recipe(folder)
    except UsageError:
        path.unlink()
        if new:
            folder.rmdir()
        raise
