"""The recipe whose cases run on a wheel that the command line names, and the version that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.config import PathSource, Recipe, Selection
from builder.matrix.load import did_you_mean
from builder.proofs.static.contents import stray_names
from builder.wheelfile.facts import WheelFacts


def recipe_for(name: str, recipes: Sequence[Recipe], select: Selection) -> Recipe | None:
    """The recipe for a wheel of this name: with `--ext` the selected recipe, otherwise the recipe of this name.

    Raises UsageError for an extension without a recipe, and for several of which none has this name.
    """
    selected = selected_recipes(recipes, select)
    if len(select.extensions) == 1:
        return selected[0]
    for recipe in selected:
        if recipe.makes(name):
            return recipe
    if select.extensions:
        raise UsageError(
            f"the wheel is of {name}, but no --ext names {name}",
            where=" ".join(f"--ext {each}" for each in select.extensions),
            hints=["pass --ext exactly once; the cases of this extension then run on every wheel"],
        )
    return None


def empty_recipe(name: str) -> Recipe:
    """A recipe without cases and without imports, which `with_imports` reads from the wheel."""
    nowhere = Path("/nonexistent")
    return Recipe(name=name, version="0", folder=nowhere, source=PathSource(nowhere), cuda="optional")


def selected_recipes(recipes: Sequence[Recipe], select: Selection) -> list[Recipe]:
    """The recipes of the selected extensions, or all; raises UsageError for an extension without a recipe."""
    by_name = {recipe.name: recipe for recipe in recipes}
    for name in select.extensions:
        if name not in by_name:
            raise UsageError(f"no extension is named {name!r}{did_you_mean(name, list(by_name))}", where="--ext")
    return [recipe for recipe in recipes if not select.extensions or recipe.name in select.extensions]


def with_imports(recipe: Recipe, facts: WheelFacts) -> Recipe:
    """The recipe; where it names no imports, they are the top-level packages and modules of the wheel.

    Without a package they are the modules, and torch is imported before them. Raises UsageError for a wheel with
    neither.
    """
    if recipe.imports:
        return recipe
    packages = {name.split("/")[0] for name in facts.files if name.endswith("/__init__.py") and name.count("/") == 1}
    modules = {name.split(".")[0] for name in facts.files if "/" not in name and name.endswith((".py", ".so"))}
    if not packages | modules:
        raise UsageError(
            "the wheel contains no Python package to import",
            where=facts.filename,
            hints=["write a recipe with `imports`"],
        )
    if packages:
        # Stray packages, such as `tests`, are no part of the extension.
        return replace(recipe, imports=tuple(sorted(packages.difference(stray_names(facts)) or packages)))
    return replace(recipe, imports=tuple(sorted(modules)), needs_first=("torch",))
