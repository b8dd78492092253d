"""Before anything is compiled: choose the executor, report every problem at once, share out cores, order the builds."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from builder.errors import Code, MissingToolError, UsageError, raise_problems
from builder.gate.amounts import grouped
from builder.images.registry import lock_path, read_lock, read_mirrors
from builder.images.specs import ImageChooser
from builder.log import print_line
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.matrix.plan import Build
from builder.process import raise_if_interrupted
from builder.resources import compile_jobs, find_shortages, measure_resources
from builder.store import Store, project_key
from builder.wheels.job import Executor, problems_of
from builder.wheels.local import LocalExecutor
from builder.wheels.sources.prepare import prepare_source, source_digest
from builder.wheels.toolchain.environments import Environments


@dataclass(frozen=True)
class RunSettings:
    """The options of a run that change what a worker does."""

    #: Its images and torch index; its path is the client's.
    matrix: Matrix
    #: `auto`, `local` or `docker`.
    executor: str = "auto"
    #: minor_mismatch, compiler_cache: whether to accept another minor of CUDA, and to use sccache.
    minor_mismatch: bool = False
    compiler_cache: bool = True


def choose_executor(
    settings: RunSettings,
    builds: Sequence[Build],
    environments: Environments,
    *,
    packages: Sequence[str] = (),
) -> Executor:
    """The executor that the settings name; `auto` takes local if it can get the toolkits, else docker.

    Args:
        settings: the options of the run.
        builds: what the executor must be able to compile.
        environments: makes the Python environments of builds.
        packages: exact requirements to build with, instead of the ones that the recipes resolve to.

    Raises MissingToolError when neither executor can compile the builds.

    """
    local = LocalExecutor(
        environments, minor_mismatch=settings.minor_mismatch, packages=packages, compiler_cache=settings.compiler_cache
    )
    auto = settings.executor == "auto"
    not_here = local.toolkit_problems(builds) if auto else []
    if settings.executor == "local" or (auto and not not_here):
        if auto:
            print_line("executor: local (the CUDA toolkit is on this machine or on the package index)")
        return local
    # The Docker SDK and jinja2 load slowly, and a local run does not need them.
    from builder.images.engine import Engine  # noqa: PLC0415
    from builder.wheels.cibuildwheel.executor import DockerExecutor  # noqa: PLC0415

    matrix, pins = settings.matrix, read_lock(lock_path(settings.matrix.path))
    docker = DockerExecutor(
        environments,
        environments.store,
        ImageChooser(matrix, Compat.load(), pins, minor_mismatch=settings.minor_mismatch),
        engine=Engine(read_mirrors()),
        packages=packages,
        compiler_cache=settings.compiler_cache,
    )
    if auto:
        print_line(f"executor: docker ({not_here[0].sentence})")
        if problems := docker.image_problems(builds):
            here, container = ("; ".join(map(str, found)) for found in (not_here, problems))
            hints = [hint for one in (*problems, *not_here) for hint in one.hints if "--executor" not in hint]
            hints = [
                *dict.fromkeys(hints),
                "name a base image that is on this machine under `images` in matrix.yaml",
                "run the command on a machine with Docker, where `--executor docker` needs no CUDA toolkit",
            ]
            sentence = "neither this machine nor a container can compile these builds"
            raise MissingToolError(
                f"{sentence}. This machine: {here}. Container: {container}", Code.NO_CELL_HERE, hints=hints
            )
    return docker


@dataclass
class BuildPlace:
    """The place of a build in the order of a run.

    Builds that can share objects form a group. The first build of a group compiles before the others start to compile:
    if all compiled at once, each would compile the kernels that are the same for all.
    """

    #: How many compilers the build may start.
    jobs: int
    #: Its number in its group.
    rank: int = 0
    #: Of the group: set when its first build has compiled.
    compiled: threading.Event = field(default_factory=threading.Event)

    def wait(self, on_wait: Callable[[], object]) -> None:
        """Wait until the first build of the group has compiled, after a call of `on_wait`. Raises Interrupted."""
        if self.rank and not self.compiled.is_set():
            on_wait()
            while not self.compiled.wait(0.2):
                raise_if_interrupted()

    def release(self) -> None:
        """Let the builds that wait for this one start: it compiled, failed, or was in the store."""
        if not self.rank:
            self.compiled.set()


def places(builds: Mapping[Build, bool], parallel: int, jobs: int, executor: Executor) -> dict[Build, BuildPlace]:
    """The place of each build; the value of a build says whether the store has its wheel.

    So many builds run in `parallel`, and each of them may start so many compilers (`jobs`).

    With a single group, its first build also gets the compilers of the builds that wait for it; each build does if they
    compile in turn. With two groups none does: builds that wait for the other group's first build could start while it
    still uses their compilers.
    """
    found = {build: BuildPlace(jobs) for build in builds}
    sharing = [build for build, stored in builds.items() if executor.shares_objects and not stored]
    groups = grouped(((build.extension, build.version, str(build.cuda)), found[build]) for build in sharing)
    for group in groups.values():
        for rank, place in enumerate(group):
            place.rank, place.compiled = rank, group[0].compiled
            if len(groups) == 1 and (executor.compiles_in_turn or not rank):
                place.jobs *= parallel
    return found


def preflight(
    builds: Sequence[Build], recipes: Mapping[str, Recipe], executor: Executor, store: Store, jobs: int | None
) -> tuple[int, int]:
    """Check all that these builds need: Pythons, toolkits, compilers, packages, sources, disk, memory.

    Returns how many builds run in parallel, and how many compilers each of them may start. `jobs` is the number of
    parallel compilers that the user asked for, or None. Raises the problem if there is one, and PreflightError if there
    are several; nothing was started then.
    """
    if not builds:
        return 1, 1
    from builder.recipes.inspection.metadata import other_versions  # noqa: PLC0415 - only a build that compiles needs it

    resources = measure_resources()
    memory = {build.extension: recipes[build.extension].memory_per_job for build in builds}
    problems = executor.problems(builds, recipes)
    problems += find_shortages(resources, memory.values(), store.root)
    sources = (recipes[build.extension].of(build.torch, build.cuda) for build in builds)
    distinct = {(recipe.name, recipe.patches): recipe for recipe in sources}
    problems += problems_of(partial(_check_source, recipe, store) for recipe in distinct.values())
    found = [recipes[name] for name in memory]
    problems += [*problems_of(partial(_check_cases, recipe) for recipe in found), *other_versions(found)]
    raise_problems(problems)
    total = compile_jobs(resources, max(memory.values()), jobs)
    parallel = min(total, len(builds))
    return parallel, max(1, total // parallel)


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
