"""Checks before anything is compiled: report every problem at once, and divide cores and memory among the builds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from builder.commands.building.build_order import Parallelism
from builder.errors import BuildfarmError, Code, UsageError, raise_problems
from builder.matrix.config import PathSource, Recipe
from builder.matrix.plan import Build
from builder.resources import compile_jobs, find_shortages, measure_resources
from builder.store import Store
from builder.wheels.job import Executor, problems_of
from builder.wheels.sources.folder import source_files
from builder.wheels.sources.prepare import prepare_source, source_digest


def preflight(
    builds: Sequence[Build], recipes: Mapping[str, Recipe], executor: Executor, store: Store, jobs: int | None
) -> Parallelism:
    """Check all that these builds need: Pythons, toolkits, compilers, packages, sources, disk, memory.

    `jobs` is the number of parallel compilers that the user asked for, or None. Raises the problem if there is one, and
    PreflightError if there are several; nothing was started then.
    """
    if not builds:
        return Parallelism()
    resources = measure_resources()
    memory = {build.extension: recipes[build.extension].memory_per_job for build in builds}
    problems = executor.problems(builds, recipes)
    problems += find_shortages(resources, memory.values(), store.root)
    problems += problems_of(partial(_check_source, recipes[name], store) for name in memory)
    problems += _recipe_problems(recipes[name] for name in memory)
    raise_problems(problems)
    total = compile_jobs(resources, max(memory.values()), jobs)
    parallel = min(total, len(builds))
    return Parallelism(parallel, max(1, total // parallel))


def check_recipes(builds: Iterable[Build], recipes: Mapping[str, Recipe]) -> None:
    """Check what `preflight` checks without a fetch, a tool or an image: cases.py, kinds of files, and the version.

    Raises what `preflight` raises.
    """
    found = [recipes[name] for name in dict.fromkeys(build.extension for build in builds)]
    folders = [recipe.source.path for recipe in found if isinstance(recipe.source, PathSource)]
    raise_problems([*problems_of(partial(source_files, folder) for folder in folders), *_recipe_problems(found)])


def _recipe_problems(recipes: Iterable[Recipe]) -> list[BuildfarmError]:
    from builder.recipes.inspection.metadata import other_versions  # noqa: PLC0415 - only a build that compiles needs it

    found = list(recipes)
    return [*problems_of(partial(_check_cases, recipe) for recipe in found), *other_versions(found)]


def _check_cases(recipe: Recipe) -> None:
    """Raise UsageError if Python cannot parse cases.py: no op could be called after the compile."""
    try:
        if recipe.cases:
            compile(recipe.cases.read_bytes(), recipe.cases, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        sentence = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"Python cannot parse this file: {sentence}", Code.FILE_INVALID, where=f"{recipe.cases}{line}"
        ) from None


def _check_source(recipe: Recipe, store: Store) -> None:
    """Raise the error of a source that cannot be fetched, does not match its recipe, or does not take its patches."""
    prepared = store.root / "sources" / "seen" / source_digest(recipe)
    if not prepared.exists():  # exists: the same source and patches were prepared before without an error
        with store.work(f"source-{recipe.name}") as scratch:
            (scratch / "src").mkdir()
            prepare_source(recipe, scratch / "src", cache=store.root / "sources")
        prepared.parent.mkdir(exist_ok=True)
        prepared.touch()
