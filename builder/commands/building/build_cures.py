"""The cures of the builds of one run. Builds of a recipe that run at a time share them."""

from threading import Lock

from builder.errors import BuildfarmError
from builder.log import print_line
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import Store
from builder.wheels.failures import CompileError


class BuildCures:
    """Cures the recipes of one run."""

    def __init__(self, store: Store, recipes: dict[str, Recipe], *, enabled: bool) -> None:
        """`recipes` are those of the run; a cured one takes the place of the old one."""
        self._store = store
        self._recipes = recipes
        self._enabled = enabled
        self._lock = Lock()

    def cured(self, build: Build, recipe: Recipe, error: CompileError) -> bool:
        """Whether the recipe of a build is not the one any more with which it failed, because a cure was applied.

        Tells what was changed. If nothing was, the error gets the reasons as hints.
        """
        if not self._enabled:
            return False
        from builder.recipes.cures import PATCH, cure  # noqa: PLC0415 - only a build that failed needs it

        with self._lock:
            if self._recipes[build.extension] is not recipe:  # a build beside this one found a cure
                return True
            try:
                self._recipes[build.extension], treatment = cure(recipe, build, error.causes, self._store)
            except (BuildfarmError, OSError) as problem:
                error.hints = (*error.hints, f"the cures cannot be written: {problem}")
                return False
            for line in treatment.done:
                print_line(f"{build}: cured: {line}")
            if self._recipes[build.extension] is not recipe:
                return True
            so_far = (
                [f"the cures so far are in {recipe.folder / PATCH}"] if recipe.folder / PATCH in recipe.patches else []
            )
            error.hints = (*error.hints, *treatment.refused, *so_far)
            return False
