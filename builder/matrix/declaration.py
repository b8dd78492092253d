"""From the files a person wrote to the plan that follows from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.matrix.axes import Arch
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe, Select, load_matrix, load_recipes
from builder.matrix.plan import Plan, make_plan


def read_plan(path: Path, select: Select, archs: tuple[Arch, ...] = ()) -> tuple[Matrix, dict[str, Recipe], Plan]:
    """Read matrix.yaml and its recipes and plan the selection; `archs`, if any, beat the matrix's and the recipes'.

    Raises UsageError for what is wrong in a file or on the command line, NothingSelectedError when nothing is left.
    """
    matrix = load_matrix(path)
    recipes = load_recipes(matrix)
    if archs:
        matrix = replace(matrix, archs=archs)
        recipes = tuple(replace(recipe, archs=()) for recipe in recipes)
    plan = make_plan(matrix, recipes, select, Compat.load())
    return matrix, {recipe.name: recipe for recipe in recipes}, plan
