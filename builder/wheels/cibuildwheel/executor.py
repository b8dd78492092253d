"""The docker executor: buildx builds the rendered image, and cibuildwheel runs each build in a container of it."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.errors import BuildfarmError, Code, MissingToolError
from builder.formats import digest_of
from builder.images.engine import Engine, pull_missing
from builder.images.image_build import cached_contents, ensure_image, inspect_image
from builder.images.network import FIRST_INDEX, ca_bundle, index_variables
from builder.images.specs import BuildImage, ImageChooser, RuntimeImage
from builder.matrix.axes import Python
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import log_size, run
from builder.records import Part, Toolchain
from builder.store import Store, write_atomic
from builder.wheels.cibuildwheel.config import container_inputs, install_spec, write_inputs
from builder.wheels.cibuildwheel.log import LOG_VARIABLES, followed, run_error
from builder.wheels.job import Compiled, CompileJob, NotPreparedError, Resolver, problems_of
from builder.wheels.repair.repair import provided_libraries, with_repair_tools
from builder.wheels.sccache.configure import read_statistics
from builder.wheels.toolchain.environments import (
    Environments,
    build_requirements,
    check_needed,
    locked_version,
    wheels_only,
)
from builder.wheels.toolchain.uv import UnsatisfiableError, UvRun, uv_error

#: Newest glibc 2.x that uv supports (uv 0.13: `--python-platform` in `uv pip compile --help`).
_NEWEST_GLIBC = 40

#: Requirements of torch that it uses only to compile programs at run time; left out unless the recipe names them.
#: Without them, the environment of a build with one more Python is a third smaller (torch 2.6: 0.7 GB), and every build
#: gets a new environment.
_RUN_TIME_ONLY = ("triton", "pytorch-triton")

#: Variables of this machine that would change a build or cibuildwheel's output.
_DROPPED_VARIABLES = re.compile(
    r"CIBW_|CI$|GITHUB_|GITLAB_CI$|TRAVIS|CIRCLECI$|APPVEYOR|AZURE_HTTP_USER_AGENT$|PYTHONPATH$"
)


def _uv_platform(build: Build, image: BuildImage) -> str:
    """The image's glibc for uv's `--python-platform`; if unknown, the oldest glibc that current torch supports."""
    major, minor = map(int, image.distribution.glibc.split(".")) if image.distribution else (2, 28)
    return f"{build.platform.machine}-manylinux_{major}_{min(minor, _NEWEST_GLIBC)}"


class DockerExecutor:
    """Builds in a container; see `Executor`."""

    name = "docker"
    compiles_in_turn = False  # containers have the same paths

    def __init__(
        self,
        environments: Environments,
        store: Store,
        chooser: ImageChooser,
        *,
        engine: Engine | None = None,
        packages: Sequence[str] = (),
        compiler_cache: bool = True,
    ) -> None:
        """`chooser` chooses the image of a build; `packages` are exact requirements to build with.

        Without `packages`, the requirements of a recipe are resolved once and recorded in the store. `compiler_cache`
        is whether compilers run through sccache.
        """
        self.environments = environments
        self._store = store
        self._chooser = chooser
        self._packages = tuple(packages)
        self.engine = engine or Engine()
        self.shares_objects = self.compiler_cache = compiler_cache
        self._orphans_removed = False

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[BuildfarmError]:
        """One error for each missing engine, buildx, CA bundle, base image or package. Pulls missing base images."""
        log = self._store.log("packages")

        def resolve(build: Build) -> None:
            self.resolve(build, recipes[build.extension], self._chooser.build_image(build), log)

        return self.image_problems(builds) or problems_of(partial(resolve, build) for build in builds)

    def image_problems(self, builds: Sequence[Build]) -> list[BuildfarmError]:
        """Why containers cannot compile these builds, except for missing packages. Pulls missing base images."""
        if problem := self.engine.problem():
            return [problem]
        self._remove_orphans()
        bases: list[str] = []

        def check(build: Build) -> None:
            ca_bundle()
            _check_platform(build)
            bases.extend(self._chooser.build_image(build).bases)

        return problems_of(partial(check, build) for build in builds) or pull_missing(self.engine, bases)

    def wanted(self, build: Build, recipe: Recipe, image: BuildImage) -> tuple[list[str], list[str], Path]:
        """What the packages of a build are resolved from, the indexes to ask first, and the file with the result."""
        wanted = build_requirements(build.torch, build.cuda, recipe.build_requires, toolkit=image.toolkit is None)
        index = self.environments.torch_index(build.torch, build.cuda)
        key = digest_of([wanted, index, _uv_platform(build, image), str(image.pythons.python)])[:16]
        return wanted, index, self._store.root / "envs" / f"docker-{key}.txt"

    def resolve(self, build: Build, recipe: Recipe, image: BuildImage, log: Path) -> list[str]:
        """The exact packages of a build; raises the errors of `uv_error` when they cannot be resolved.

        They are resolved once for an image, then they are read from the store.
        """
        wanted, index, record = self.wanted(build, recipe, image)
        resolver = self.resolver(build, image.pythons.python)
        arguments = ["--python", resolver.python, *resolver.options]
        own = {canonicalize_name(Requirement(text).name) for text in recipe.build_requires}
        arguments += [word for name in _RUN_TIME_ONLY if name not in own for word in ("--no-emit-package", name)]
        if self._packages:
            options = [*arguments, *wheels_only(self._packages, recipe.build_requires)]
            check_needed(self._packages, wanted, options, index=index, store=self._store)
            return list(self._packages)
        job = f"env-{record.stem}"
        with self._store.lock(job):
            if not record.exists():
                arguments = ["--no-config", "--no-annotate", *arguments]
                uv = UvRun(index, log, self._store.owner(job))
                with tempfile.TemporaryDirectory(prefix="buildfarm-lock-") as folder:
                    locked = uv.compile(wanted, arguments, Path(folder))
                # Requirements are kept without spaces: PEP 508 allows `name@URL`.
                write_atomic(record, locked.replace(" @ ", "@").encode())
        return record.read_text().splitlines()

    def record(self, build: Build, recipe: Recipe) -> Path:
        """See `Executor.record`."""
        return self.wanted(build, recipe, self._chooser.build_image(build))[2]

    def resolver(self, build: Build, python: Python) -> Resolver:
        """See `Executor.resolver`. uv needs an interpreter, and this machine may not have the image's Python."""
        system = _uv_platform(build, self._chooser.build_image(build))
        return Resolver(sys.executable, ("--python-version", str(python), "--python-platform", system))

    def images(self, build: Build, log: Path) -> dict[str, str]:
        """See `Executor.images`."""
        found: dict[str, str] = {}
        images: list[tuple[BuildImage | RuntimeImage, list[str]]] = [(self._chooser.build_image(build), [])]
        for cell in build.serves:
            index = self.environments.torch_index(cell.torch, cell.cuda)
            images.append((self._chooser.runtime_image(cell), index))
        for image, index in images:
            tag = ensure_image(self.engine, self._store, image, log=log, index=index)
            found |= {name: self.engine.base_id(name) for name in (tag, *image.bases)}
        return found

    def _remove_orphans(self) -> None:
        """Remove the containers that killed runs left behind; once in a run."""
        if not self._orphans_removed:
            self.engine.remove_orphans(self._store)
            self._orphans_removed = True

    def prepare(self, build: Build, recipe: Recipe, *, log: Path, cached_only: bool = False) -> DockerBuild:
        """Inspect the image, and resolve the packages; see `Executor.prepare`."""
        image = self._chooser.build_image(build)
        record = self.wanted(build, recipe, image)[2]
        packages = list(self._packages) or (record.read_text().splitlines() if record.exists() else None)
        if cached_only:
            if self.engine.problem():
                raise NotPreparedError
            self._remove_orphans()
            known = cached_contents(self.engine, self._store, image)
            if known is None or packages is None:
                raise NotPreparedError
        else:
            _check_platform(build)
            known = inspect_image(self.engine, self._store, image, log=log)
            packages = packages or self.resolve(build, recipe, image, log)
        tag, contents = known
        nvcc = contents.nvcc if image.toolkit else locked_version(packages, "nvidia-cuda-nvcc")
        base, _, digest = image.base.partition("@")
        other_minor = image.toolkit and ".".join(nvcc.split(".")[:2]) != str(build.cuda)
        toolchain = with_repair_tools(
            Toolchain(
                executor=self.name,
                python=image.pythons.python,
                packages=tuple(packages),
                others={
                    Part.PYTHON_VERSION: contents.python,
                    Part.CXX: f"g++ {contents.gxx}",
                    Part.NVCC: nvcc,
                    Part.REQUESTED_CUDA: f"CUDA {build.cuda}" if other_minor else None,
                    Part.CIBUILDWHEEL: version("cibuildwheel"),
                    Part.IMAGE: tag,
                    Part.BASE: base,
                    Part.BASE_ID: self.engine.base_id(image.base),
                    Part.BASE_DIGEST: digest or None,
                },
            )
        )
        return DockerBuild(self, image, tag, contents.path, toolchain)


@dataclass(frozen=True)
class DockerBuild:
    """The image and the packages of one build; see `Prepared`."""

    _executor: DockerExecutor
    _image: BuildImage
    _tag: str
    _path: str  # the variable PATH in the image
    toolchain: Toolchain

    def compile(self, job: CompileJob, stage: Callable[[str], None]) -> Compiled:
        """Build one wheel and copy the libraries it needs of the image into it."""
        self._executor.engine.remove_containers(job.owner)
        stage("environment")
        temporary = job.work / "tmp"
        temporary.mkdir(exist_ok=True)
        torch_index = self._executor.environments.torch_index(job.build.torch, job.build.cuda)
        cache, toolkit = self._executor.compiler_cache, bool(self._image.toolkit)
        inputs = container_inputs(job, self._tag, self._path, torch_index, has_toolkit=toolkit, compiler_cache=cache)
        settings = write_inputs(job, inputs)
        # -P: a directory of the source tree must not shadow a module that cibuildwheel imports.
        identifier = f"{job.toolchain.python.tag}-manylinux_{job.build.platform.machine}"
        argv = [sys.executable, "-P", "-m", "cibuildwheel", "--only", identifier]
        argv += ["--output-dir", str(job.raw), "--config-file", str(settings), str(job.source)]
        variables = {k: v for k, v in os.environ.items() if not _DROPPED_VARIABLES.match(k)}
        # Values may contain passwords, so docker's arguments have only the names of these variables.
        variables |= index_variables(index=torch_index)
        # cibuildwheel copies this CA bundle into the container, for pip; otherwise it takes the one of certifi.
        variables |= {**LOG_VARIABLES, "SSL_CERT_FILE": str(ca_bundle())}
        variables |= {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        if FIRST_INDEX in job.recipe.env:  # the recipe takes precedence, as for every variable
            variables[FIRST_INDEX] = job.recipe.env[FIRST_INDEX]
        start = log_size(job.log)
        spec, installation = install_spec(job, inputs)
        with self._executor.engine.container(spec) as installer:
            result = installer.run(installation, log=job.log)
        if result.status != 0:
            raise self._failure(job, start, 1)  # other statuses of uv and cibuildwheel differ in meaning
        start = log_size(job.log)
        status: int | None = None
        try:
            open_root = partial(self._executor.engine.make_root_directory_writable, job.owner)
            with followed(job.log, start, stage, open_root):
                status = run(argv, log=job.log, owner=job.owner, cwd=job.tree, env=variables)
        finally:
            # Also after an interrupt, which kills cibuildwheel but not its container.
            try:
                self._executor.engine.remove_containers(job.owner)
            except MissingToolError as error:  # must not hide the result of the build; the next run removes it
                with job.log.open("a", encoding="utf-8") as stream:
                    stream.write(f"the container may still exist: {error.sentence}\n")
        if status != 0:
            raise self._failure(job, start, status)
        wheel, site = job.raw_wheel(), job.shared / "site"  # metadata that the build copied out of the container
        return Compiled(wheel, provided_libraries(site, job.recipe.requires), read_statistics(job.statistics))

    def _failure(self, job: CompileJob, start: int, status: int) -> BuildfarmError:
        """The error for a failed run of cibuildwheel. A stopped engine explains the failure better than any output."""
        error = run_error(job, start, status)
        if problem := self._executor.engine.problem():
            return MissingToolError(
                f"the Docker engine stopped answering during the {error.stage} stage: {problem.sentence}",
                Code.ENGINE_NOT_ANSWERING,
                where=problem.where,
                hints=[*problem.hints, f"the full output is in {job.log}"],
            )
        if error.stage == "environment":
            wanted, index, _ = self._executor.wanted(job.build, job.recipe, self._image)
            cause = uv_error(status, job.log, start, wanted, index)
            if isinstance(cause, MissingToolError) and not isinstance(cause, UnsatisfiableError):
                return cause
        return error


def _check_platform(build: Build) -> None:
    here = f"linux_{os.uname().machine}"
    if build.platform != here:
        raise MissingToolError(
            f"containers on this machine are {here}, but {build} is for {build.platform}",
            Code.PLATFORM_UNSUPPORTED,
            hints=[f"run buildfarm on a {build.platform} machine"],
        )
