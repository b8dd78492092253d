"""The docker executor: a rendered image made by buildx, and one cibuildwheel run in it for each build."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.errors import BuildError, FarmError, MissingToolError
from builder.images.abandoned import end_abandoned
from builder.images.container import LABEL
from builder.images.engine import Engine
from builder.images.making import Insides, known_insides, look_inside
from builder.images.network import FIRST_INDEX, ca_bundle, index_variables
from builder.images.specs import BuildImage, Choice
from builder.log import warn
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import run
from builder.store import Store, digest_of, write_whole
from builder.wheels.build import Job, Toolchain
from builder.wheels.container import (
    SOURCE,
    Place,
    identifier,
    left_aside,
    left_in_volumes,
    objects_told,
    scripts_digest,
    write_inputs,
)
from builder.wheels.environment import (
    Environments,
    KilledError,
    UnsatisfiableError,
    build_requirements,
    locked_version,
    uv_fault,
    uv_variables,
)
from builder.wheels.folds import VARIABLES, announced, failure
from builder.wheels.objects import Objects, read_objects
from builder.wheels.pythons import find_uv
from builder.wheels.repair import provided_libraries, repair_tools
from builder.wheels.upstream import read_upstream

#: The newest glibc 2.x that uv knows by name (uv 0.13: `--python-platform` of `uv pip compile --help`).
_NEWEST_GLIBC = 40

#: torch asks for it and imports it where a program is compiled at run time. A third of what each further Python of a
#: torch unpacks (torch 2.6: 0.7 GB), in an environment that every build gets anew.
_AT_RUN_TIME = ("triton", "pytorch-triton")

#: Variables that would change a build, or make cibuildwheel write outside its log, unasked.
_MEDDLING = re.compile(r"CIBW_|CI$|GITHUB_|GITLAB_CI$|TRAVIS|CIRCLECI$|APPVEYOR|AZURE_HTTP_USER_AGENT$|PYTHONPATH$")


class DockerExecutor:
    """Builds in a container; see `Executor`."""

    name = "docker"
    shares_objects = True

    def __init__(
        self,
        environments: Environments,
        store: Store,
        choice: Choice,
        *,
        engine: Engine | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        """`choice` says what a build's image is made of; `packages` are exact requirements to build with.

        Without `packages` those of a recipe are resolved, and kept.
        """
        self._environments = environments
        self._store = store
        self._choice = choice
        self._engine = engine or Engine()
        self._exact = tuple(packages)
        self._told: set[str] = set()
        self._cleared = False

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[FarmError]:
        """Missing engine, buildx, CA bundle, base image or package: one sentence for each. Bases are pulled."""
        if problem := self._engine.problem():
            return [problem]
        self._end_abandoned()
        found: dict[str, FarmError] = {}
        bases: dict[str, bool] = {}
        for build in builds:
            try:
                ca_bundle()
                _platform_of(build)
                image = self._choice.build_image(build)
                for base in image.bases:
                    if base not in bases and (lacking := self._lacking(base, build)):
                        found[base] = lacking
                    bases.setdefault(base, base not in found)
                if all(bases[base] for base in image.bases):
                    self._packages(build, recipes[build.extension], image, self._store.log("packages"))
            except FarmError as error:
                found.setdefault(str(error), error)
        return list(found.values())

    def _lacking(self, base: str, build: Build) -> MissingToolError | None:
        """Why a base image is not here, with who names it; None when it is, or was pulled."""
        try:
            self._engine.base_id(base)
        except MissingToolError as error:
            return MissingToolError(error.sentence, where=self._choice.named_by(build), hints=error.hints)
        return None

    def _end_abandoned(self) -> None:
        """End the containers that killed farms left, once in a run."""
        if not self._cleared:
            end_abandoned(self._engine, self._store, LABEL)
            self._cleared = True

    def known_toolchain(self, build: Build, recipe: Recipe) -> Toolchain | None:
        """What the image holds and each package's version, once both were looked at; else None."""
        image = self._choice.build_image(build)
        if self._engine.problem():
            return None
        self._end_abandoned()
        known, record = known_insides(self._engine, self._store, image), self._lock_record(build, recipe, image)
        if known is None or not (self._exact or record.exists()):
            return None
        return self._identity(image, *known, self._exact or record.read_text().splitlines(), build)

    def toolchain(self, build: Build, recipe: Recipe, *, log: Path) -> Toolchain:
        """The same, after making the image and finding the versions where that was not done yet."""
        _platform_of(build)
        image = self._choice.build_image(build)
        tag, insides = look_inside(self._engine, self._store, image, log=log)
        return self._identity(image, tag, insides, self._packages(build, recipe, image, log), build)

    def _identity(
        self, image: BuildImage, tag: str, insides: Insides, packages: Sequence[str], build: Build
    ) -> Toolchain:
        nvcc = insides.nvcc if image.toolkit else locked_version(packages, "nvidia-cuda-nvcc")
        base, _, digest = image.base.partition("@")
        parts = {
            "image": tag,
            "base": base,
            "base id": self._engine.base_id(image.base),
            "python": insides.python,
            "c++": f"g++ {insides.gxx}",
            "nvcc": nvcc,
            "packages": " ".join(packages),
            "scripts": scripts_digest(),
            # On this side: what drives the container, and the final repair.
            "cibuildwheel": version("cibuildwheel"),
            **repair_tools(),
        }
        if digest:  # of the registry's manifest; the engine's id names what it was unpacked to
            parts["base digest"] = digest
        if image.toolkit and ".".join(nvcc.split(".")[:2]) != str(build.cuda):
            parts["stands in for"] = f"CUDA {build.cuda}"
        return Toolchain(self.name, image.pythons.python, tuple(sorted(parts.items())))

    def compile(self, job: Job, stage: Callable[[str], None]) -> Path:
        """Build one wheel and graft into it what it needs of the image; it is put into `job.work/raw`."""
        self._engine.reap(f"{LABEL}={job.mark}")
        stage("environment")
        raw, temporary = job.work / "raw", job.work / "tmp"
        temporary.mkdir(exist_ok=True)
        image = self._choice.build_image(job.build)
        place = Place(*look_inside(self._engine, self._store, image, log=job.log), bool(image.toolkit))
        upstream = read_upstream(job.source, identifier(job), job.recipe.cibuildwheel_skip)
        self._tell(job, left_aside(job, place, upstream))
        settings, _ = write_inputs(job, place, upstream, torch_index=self._torch_index(job.build))
        # -P: a source tree with a folder named like one of cibuildwheel's imports must not shadow it.
        argv = [sys.executable, "-P", "-m", "cibuildwheel", "--only", identifier(job)]
        argv += ["--output-dir", str(raw), "--config-file", str(settings), str(job.source)]
        variables = {k: v for k, v in os.environ.items() if not _MEDDLING.match(k)}
        # By name alone in docker's arguments: it may hold a password.
        variables |= index_variables(index=self._torch_index(job.build))
        variables |= {**VARIABLES, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        if FIRST_INDEX in job.recipe.env:  # the recipe has the last word, as over every variable
            variables[FIRST_INDEX] = job.recipe.env[FIRST_INDEX]
        start = job.log.stat().st_size if job.log.exists() else 0
        status: int | None = None
        try:
            with announced(job.log, start, stage), self._engine.eased(f"{LABEL}={job.mark}"):
                status = run(argv, log=job.log, job=job.mark, cwd=job.source, env=variables)
        finally:
            # Also when the farm is ending: cibuildwheel is killed then, and its container would go on.
            self._clear(job, place.image, unfinished=status != 0)
        if status != 0:
            raise self._failure(job, start, status, image)
        wheels = sorted(raw.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildError(f"the build made {len(wheels)} wheels where one was due", stage="compile", log=job.log)
        return wheels[0]

    def _clear(self, job: Job, image: str, *, unfinished: bool) -> None:
        """End a job's container, and of an unfinished one what it left in volumes; what fails, the next run does."""
        try:
            self._engine.reap(f"{LABEL}={job.mark}")
            if unfinished:
                script, volumes = left_in_volumes(job)
                self._engine.ask(image, script, mark=job.mark, volumes=volumes)
        except MissingToolError as error:  # how the build ended counts more
            with job.log.open("a", encoding="utf-8") as stream:
                stream.write(f"its container may still be there: {error.sentence}\n")

    def _failure(self, job: Job, start: int, status: int, image: BuildImage) -> FarmError:
        """A failed run of cibuildwheel as a sentence; with its engine gone, whatever it printed says nothing."""
        error = failure(job, start, status, image=image.base)
        if problem := self._engine.problem():
            stage = error.stage if isinstance(error, BuildError) else "environment"
            return MissingToolError(
                f"the Docker engine went away in the middle of the {stage} stage: {problem.sentence}",
                where=problem.where,
                hints=[*problem.hints, f"the whole output is in {job.log}"],
            )
        if isinstance(error, BuildError) and error.stage == "environment":
            requirements, index, _ = self._wanted(job.build, job.recipe, image)
            fault = uv_fault(job.log, start, requirements, index)
            if isinstance(fault, MissingToolError) and not isinstance(fault, UnsatisfiableError):
                return fault
        return error

    def _tell(self, job: Job, sentences: Sequence[str]) -> None:
        """What a person should know of a build: into its log, and once to the person."""
        with job.log.open("a", encoding="utf-8") as stream:
            stream.writelines(f"note: {sentence}\n" for sentence in sentences)
        for sentence in sentences:
            if (told := f"{job.build.extension}: {sentence}") not in self._told:
                self._told.add(told)
                warn(told)

    def objects(self, job: Job) -> Objects | None:
        """What the object cache in the container did."""
        return read_objects(objects_told(job), SOURCE)

    def libraries(self, job: Job) -> frozenset[str]:
        """What torch and its CUDA packages brought in the container: their metadata came out of it."""
        return provided_libraries(job.work / "container" / "site", job.recipe.requires)

    def _wanted(self, build: Build, recipe: Recipe, image: BuildImage) -> tuple[list[str], list[str], str]:
        """Requirements, PyTorch's index where it is needed, and the platform in uv's words."""
        default = Compat.load().is_default_variant(build.torch, build.cuda)
        extra = (*recipe.build_requires, "pip")  # what a source's own before-build expects to find
        packaged = image.toolkit is None
        requirements = build_requirements(build.torch, build.cuda, extra, default_variant=default, toolkit=packaged)
        platform = f"{build.platform.removeprefix('linux_')}-{_uv_platform(image)}"
        return requirements, self._torch_index(build), platform

    def _lock_record(self, build: Build, recipe: Recipe, image: BuildImage) -> Path:
        """Where the exact versions of a build's packages are kept."""
        key = digest_of([*self._wanted(build, recipe, image), str(image.pythons.python)])[:16]
        return self._store.root / "envs" / f"docker-{key}.txt"

    def _packages(self, build: Build, recipe: Recipe, image: BuildImage, log: Path) -> list[str]:
        """The exact versions the build's requirements resolve to, kept from the first time on."""
        if self._exact:
            return list(self._exact)
        requirements, index, platform = self._wanted(build, recipe, image)
        record = self._lock_record(build, recipe, image)
        with self._store.lock(f"env-{record.stem}"):
            if not record.exists():
                with tempfile.TemporaryDirectory(prefix="buildfarm-lock-") as folder:
                    wanted, locked = Path(folder, "wanted.txt"), Path(folder, "locked.txt")
                    wanted.write_text("\n".join(requirements) + "\n")
                    argv = [str(find_uv()), "pip", "compile", "--quiet", "--no-config", "--no-header"]
                    # uv wants some interpreter, and this machine need not have the image's.
                    argv += ["--no-annotate", "--python", sys.executable]
                    argv += ["--python-version", str(image.pythons.python)]
                    argv += ["--python-platform", platform, "--output-file", str(locked), str(wanted)]
                    argv += [word for name in _left_out(recipe) for word in ("--no-emit-package", name)]
                    start = log.stat().st_size if log.exists() else 0
                    status = run(argv, log=log, job=self._store.mark(f"env-{record.stem}"), env=uv_variables(index))
                    if status < 0:
                        raise KilledError(f"uv was ended by signal {-status}", stage="environment", log=log)
                    if status != 0:
                        raise uv_fault(log, start, requirements, index)
                    # A requirement is one word wherever these are kept: PEP 508 takes `name@URL`.
                    write_whole(record, locked.read_text().replace(" @ ", "@").encode())
        return record.read_text().splitlines()

    def _torch_index(self, build: Build) -> list[str]:
        default = Compat.load().is_default_variant(build.torch, build.cuda)
        return self._environments.index_urls(build.cuda, default_variant=default)


def _left_out(recipe: Recipe) -> list[str]:
    """torch's requirements that no compile reads, unless the recipe wants them."""
    wanted = {canonicalize_name(Requirement(text).name) for text in recipe.build_requires}
    return [name for name in _AT_RUN_TIME if name not in wanted]


def _uv_platform(image: BuildImage) -> str:
    """The image's C library in the words of uv's `--python-platform`; if unknown, the oldest of current torch."""
    if image.distribution is None:
        return "manylinux_2_28"
    major, minor = map(int, image.distribution.glibc.split("."))
    return f"manylinux_{major}_{min(minor, _NEWEST_GLIBC)}"


def _platform_of(build: Build) -> None:
    here = f"linux_{os.uname().machine}"
    if build.platform != here:
        raise MissingToolError(
            f"containers on this machine are {here}, and {build} is for {build.platform}",
            hints=["run the farm on a machine of that platform"],
        )
