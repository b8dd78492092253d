"""The options of a run that its executors need, and the executor that they choose: this machine, or containers."""

from collections.abc import Sequence
from dataclasses import dataclass

from builder.errors import Code, MissingToolError
from builder.images.registry import lock_path, read_lock, read_mirrors
from builder.images.specs import ImageChooser
from builder.log import print_line
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix
from builder.matrix.plan import Build
from builder.wheels.job import Executor
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain.environments import Environments


@dataclass(frozen=True)
class RunSettings:
    """The options of a run that change what a worker does."""

    #: Its images and torch index; its path is the client's.
    matrix: Matrix
    #: `auto`, `local` or `docker`.
    executor: str = "auto"
    #: minor_mismatch, compiler_cache, pull: whether to accept another minor of CUDA, to use sccache, to pull images.
    minor_mismatch: bool = False
    compiler_cache: bool = True
    pull: bool = True


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
        engine=Engine(read_mirrors(), may_pull=settings.pull),
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
