"""Before anything is made: every problem at once, and how cores and memory are shared among the builds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from builder.errors import FarmError, PreflightError
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import Store
from builder.wheels.build import Executor
from builder.wheels.resources import compile_jobs, measure, shortages
from builder.wheels.source import prepare_source, source_digest


@dataclass(frozen=True)
class Share:
    """How many builds run side by side, and how many compilers each of them may start."""

    builds: int = 1
    jobs: int = 1


def preflight(
    builds: Sequence[Build], recipes: Mapping[str, Recipe], executor: Executor, store: Store, jobs: int | None
) -> Share:
    """Look at all that these builds need: Pythons, toolkits, compilers, packages, sources, disk, memory.

    Raises the one problem there is, or PreflightError with all of them. Nothing has been started then.
    """
    if not builds:
        return Share()
    resources = measure()
    memory = {build.extension: recipes[build.extension].memory_per_job for build in builds}
    problems = executor.problems(builds, recipes)
    problems += shortages(resources, memory.values(), store.root)
    problems += _source_problems((recipes[name] for name in memory), store)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise PreflightError(problems)
    total = compile_jobs(resources, max(memory.values()), jobs)
    parallel = min(total, len(builds))
    return Share(parallel, max(1, total // parallel))


def _source_problems(recipes: Iterable[Recipe], store: Store) -> list[FarmError]:
    """Sources that cannot be had, are not what the recipe says, or do not take their patches."""
    found: list[FarmError] = []
    cache = store.root / "sources"
    for recipe in recipes:
        try:
            seen = cache / "seen" / source_digest(recipe, cache=cache)
            if not seen.exists():  # the same bytes were prepared before, whole
                with store.work(f"source-{recipe.name}") as scratch:
                    (scratch / "src").mkdir()
                    prepare_source(recipe, scratch / "src", cache=cache)
                seen.parent.mkdir(exist_ok=True)
                seen.touch()
        except FarmError as error:
            found.append(error)
    return found
