"""Checks before anything is compiled: report every problem at once, and divide cores and memory among the builds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from builder.commands.building.build_order import Parallelism
from builder.errors import BuildfarmError, Code, UsageError, raise_problems
from builder.matrix.config import PathSource, Recipe
from builder.matrix.plan import Build
from builder.resources import compile_jobs, find_shortages, measure_resources
from builder.store import Store
from builder.wheels.job import Executor
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
    problems += _source_problems((recipes[name] for name in memory), store)
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
    raise_problems([*_folder_problems(found), *_recipe_problems(found)])


def _recipe_problems(recipes: Iterable[Recipe]) -> list[BuildfarmError]:
    from builder.recipes.inspection.metadata import other_versions  # noqa: PLC0415 - only a build that compiles needs it

    found = list(recipes)
    return [*_syntax_errors(found), *other_versions(found)]


def _folder_problems(recipes: Iterable[Recipe]) -> list[BuildfarmError]:
    """Source folders that do not exist, or that have a pipe, a socket or a device."""
    found: list[BuildfarmError] = []
    for source in (recipe.source for recipe in recipes):
        try:
            if isinstance(source, PathSource):
                source_files(source.path)
        except UsageError as error:
            found.append(error)
    return found


def _syntax_errors(recipes: Iterable[Recipe]) -> list[BuildfarmError]:
    """Files cases.py that Python cannot parse: no op could be called after the compile."""
    found: list[BuildfarmError] = []
    for recipe in recipes:
        try:
            if recipe.cases:
                compile(recipe.cases.read_bytes(), recipe.cases, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            sentence = error.msg if isinstance(error, SyntaxError) else str(error)
            found.append(
                UsageError(
                    f"Python cannot parse this file: {sentence}", Code.CASES_UNREADABLE, where=f"{recipe.cases}{line}"
                )
            )
    return found


def _source_problems(recipes: Iterable[Recipe], store: Store) -> list[BuildfarmError]:
    """Sources that cannot be fetched, do not match their recipe, or do not take their patches."""
    found: list[BuildfarmError] = []
    cache = store.root / "sources"
    for recipe in recipes:
        try:
            prepared = cache / "seen" / source_digest(recipe)
            if not prepared.exists():  # exists: the same source and patches were prepared before without an error
                with store.work(f"source-{recipe.name}") as scratch:
                    (scratch / "src").mkdir()
                    prepare_source(recipe, scratch / "src", cache=cache)
                prepared.parent.mkdir(exist_ok=True)
                prepared.touch()
        except BuildfarmError as error:
            found.append(error)
    return found
