"""Keep what the cures of a failed build change in its recipe: one patch file, and keys of extension.yaml."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.diagnosis.cures import Treatment, treat
from builder.diagnosis.known_errors import KnownCause
from builder.matrix.config import RECIPE, PathSource, Recipe
from builder.matrix.load import recipe_of
from builder.matrix.plan import Build
from builder.matrix.yaml_document import parse_document
from builder.recipes.matrix_file import extended
from builder.store import Store, project_key, write_atomic
from builder.wheels.sources.patches import make_patch
from builder.wheels.sources.prepare import prepare_source, project_folder

#: The patch with all cures of a recipe, which buildfarm writes.
PATCH = "patches/buildfarm-cures.patch"
_HEAD = b"Cures of errors of compilers, written by `buildfarm build`. Review them.\n"
_COMMENT = "# a cure that `buildfarm build` added"
_DIFF = b"diff --git "


def cure(recipe: Recipe, build: Build, found: Sequence[KnownCause], store: Store) -> tuple[Recipe, Treatment]:
    """Apply the cures of causes to the recipe of a build; return the new recipe and what was done.

    The recipe is the same object if nothing was done. The source of a user's own folder is not changed. Raises what
    `prepare_source` raises, and UsageError if extension.yaml has a form that cannot be extended.
    """
    patch, built = recipe.folder / PATCH, recipe.of(build.torch, build.cuda)
    if isinstance(recipe.source, PathSource):
        return recipe, Treatment()
    if patch in recipe.patches and built.patches[-1:] != (patch,):
        return recipe, Treatment(
            refused=[f"nothing is cured: `patches` has {PATCH} for other builds, or not at its end"]
        )
    with store.work(f"cure-{project_key(recipe.folder)}") as scratch:
        trees = [scratch / "before", scratch / "now"]
        uncured = replace(built, patches=tuple(each for each in built.patches if each != patch))
        for tree, each in zip(trees, (uncured, built), strict=True):
            tree.mkdir()
            prepare_source(each, tree, cache=store.root / "sources")
        before, now = (project_folder(recipe, tree) for tree in trees)
        treatment = treat(now, found, build.torch, build.cuda)
        lines = [each for each in treatment.recipe if _lacks(recipe, *each)]
        if treatment.files and patch not in recipe.patches:
            lines.append(("patches", "", PATCH))
        if not lines and not treatment.files:
            return recipe, treatment
        text = _extended(recipe, lines)
        if treatment.files:
            _write_patch(patch, patch.read_bytes() if patch in recipe.patches else b"", before, now, treatment)
    document = parse_document(text, recipe.folder / RECIPE)
    changed = recipe_of(document, recipe.folder)
    if lines:
        write_atomic(document.path, text.encode())
    return replace(recipe, **{key: getattr(changed, key) for key, _, _ in lines}), treatment


def _lacks(recipe: Recipe, key: str, name: str, value: str) -> bool:
    given = getattr(recipe, key)
    return not given if isinstance(given, bool) else (name or value) not in given


def _write_patch(patch: Path, old: bytes, before: Path, now: Path, treatment: Treatment) -> None:
    """Write all cures of a recipe to one file: those of the old one, and the new ones."""
    head = old.partition(_DIFF)[0].rstrip() or _HEAD
    head += "".join(f"\n  {line}" for line in treatment.done if not line.startswith(RECIPE)).encode() + b"\n\n"
    names = sorted({*treatment.files, *_changed(old)})
    after = {name: treatment.files.get(name) or (now / name).read_bytes() for name in names}
    text = make_patch({name: (before / name).read_bytes() for name in names}, after)
    patch.parent.mkdir(exist_ok=True)
    write_atomic(patch, head + text)


def _changed(patch: bytes) -> list[str]:
    """The files that a patch of ours changes."""
    heads = [line for line in patch.splitlines() if line.startswith(b"+++ b/")]
    return [line.removeprefix(b"+++ b/").rstrip(b"\t").decode() for line in heads]


def _extended(recipe: Recipe, lines: Sequence[tuple[str, str, str]]) -> str:
    """The text of the recipe with these items: key, name in it or "", value."""
    path = recipe.folder / RECIPE
    text = path.read_text(encoding="utf-8")
    for key, name, value in lines:
        if isinstance(getattr(recipe, key), bool):
            text = f"{text.rstrip()}\n{_COMMENT}\n{key}: {value}\n"
        else:
            text = extended(text, path, key, value, name, _COMMENT)
    return text
