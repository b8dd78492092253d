"""Before anything is compiled: report every problem at once, divide cores and memory, and order the builds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from builder.errors import BuildfarmError, Code, UsageError, raise_problems
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import raise_if_interrupted
from builder.resources import compile_jobs, find_shortages, measure_resources
from builder.store import Store, project_key
from builder.wheels.job import Executor, problems_of
from builder.wheels.sources.prepare import prepare_source, source_digest


@dataclass(frozen=True)
class Parallelism:
    """How many builds run in parallel, and how many compilers each of them may start."""

    builds: int = 1
    jobs: int = 1


class BuildOrder:
    """The order of one run's builds.

    Builds that can share objects form a group. The first build of a group compiles before the others start to compile:
    if all compiled at once, each would compile the kernels that are the same for all.
    """

    def __init__(self, builds: Sequence[Build], *, in_turn: bool = False) -> None:
        """Group the builds that will be compiled; `in_turn`: the executor compiles those of a group one by one."""
        self._in_turn = in_turn
        self._compiled: dict[tuple[str, ...], threading.Event] = {}  # per group: its first build has compiled
        self._first: set[Build] = set()
        for build in builds:
            if _group(build) not in self._compiled:
                self._compiled[_group(build)] = threading.Event()
                self._first.add(build)

    def ordered(self, builds: Iterable[Build]) -> list[Build]:
        """The same builds: the first build of each group, then a further build of each group, and so on."""
        ranks: Counter[tuple[str, ...]] = Counter()

        def rank(build: Build) -> int:
            if build in self._first or _group(build) not in self._compiled:
                return 0
            ranks[_group(build)] += 1
            return ranks[_group(build)]

        return sorted(builds, key=rank)

    def release(self, build: Build) -> None:
        """Let the builds that wait for this one start: it compiled, failed, or was in the store."""
        if build in self._first:
            self._compiled[_group(build)].set()

    @contextmanager
    def compiling(
        self, build: Build, parallelism: Parallelism, on_wait: Callable[[], object] = lambda: None
    ) -> Iterator[int]:
        """Wait until the first build of the group is released, after a call of `on_wait`; on exit release this build.

        Yields how many compilers the build may start. With a single group, its first build also gets the compilers of
        the builds that wait for it; each build does if they compile in turn. With two groups none does: builds that
        wait for the other group's first build could start while it still uses their compilers.

        Raises Interrupted when the run is interrupted while it waits.
        """
        compiled, jobs = self._compiled.get(_group(build)), parallelism.jobs
        if compiled is not None and build not in self._first and not compiled.is_set():
            on_wait()
            while not compiled.wait(0.2):
                raise_if_interrupted()
        try:
            alone = len(self._first) == 1 and compiled is not None and (self._in_turn or build in self._first)
            yield parallelism.builds * jobs if alone else jobs
        finally:
            self.release(build)


def _group(build: Build) -> tuple[str, ...]:
    """What builds that can share objects have in common: the source and the CUDA compiler."""
    return (build.extension, build.version, str(build.cuda))


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
    sources = (recipes[build.extension].of(build.torch, build.cuda) for build in builds)
    distinct = {(recipe.name, recipe.patches): recipe for recipe in sources}
    problems += problems_of(partial(_check_source, recipe, store) for recipe in distinct.values())
    problems += _recipe_problems(recipes[name] for name in memory)
    raise_problems(problems)
    total = compile_jobs(resources, max(memory.values()), jobs)
    parallel = min(total, len(builds))
    return Parallelism(parallel, max(1, total // parallel))


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
        with store.work(f"source-{project_key(recipe.folder)}") as scratch:
            (scratch / "src").mkdir()
            prepare_source(recipe, scratch / "src", cache=store.root / "sources")
        prepared.parent.mkdir(exist_ok=True)
        prepared.touch()
