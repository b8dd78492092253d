"""The docker executor: a rendered image made by buildx, and one cibuildwheel run in it for each build."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError
from builder.images.base import Base, find_base
from builder.images.choice import base_image, why_not_here
from builder.images.engine import Engine
from builder.images.network import ca_bundle, ca_variables, index_variables, shell_settings
from builder.images.render import render, tag
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import run
from builder.store import Store, digest_of, write_whole
from builder.wheels.build import Job, Toolchain
from builder.wheels.container import LABEL, forget, identifier, scripts_digest, write_inputs
from builder.wheels.environment import (
    Environments,
    build_requirements,
    index_setting,
    uv_variables,
)
from builder.wheels.local import compile_failure
from builder.wheels.pythons import find_uv
from builder.wheels.repair import provided_libraries, repair_tools
from builder.wheels.toolkit import FIRST_PACKAGED

#: What cibuildwheel says when it starts a step, and the farm's name for that stage.
_STEPS = {
    "Running before_build...": "environment",
    "Building wheel...": "compile",
    "Repairing wheel...": "repair",
}

#: cibuildwheel's own exit status for a wheel with no library in it (its errors.py).
_PURE_WHEEL = 5

#: Variables that would change a build, or make cibuildwheel write outside its log, unasked.
_MEDDLING = re.compile(r"CIBW_|CI$|GITHUB_|GITLAB_CI$|TRAVIS|CIRCLECI$|APPVEYOR|AZURE_HTTP_USER_AGENT$|PYTHONPATH$")


class DockerExecutor:
    """Builds in a container; see `Executor`."""

    name = "docker"

    def __init__(
        self,
        environments: Environments,
        store: Store,
        images: Sequence[tuple[str, str]] = (),
        *,
        engine: Engine | None = None,
    ) -> None:
        """`images` are pairs of a cell name pattern and a base image, first match wins (Matrix.images)."""
        self._environments = environments
        self._store = store
        self._images = tuple(images)
        self._engine = engine or Engine()
        self._bases: dict[str, Base] = {}

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[FarmError]:
        """Missing engine, buildx, CA bundle, base, Python, compiler, toolkit or package: one sentence for each."""
        if problem := self._engine.problem():
            return [problem]
        found: dict[str, FarmError] = {}
        for build in builds:
            try:
                ca_bundle()
                _platform_of(build)
                _toolkit_of(build)
                base = self._fitting_base(build)
                self._packages(build, recipes[build.extension], base, self._store.log("packages"))
            except MissingToolError as error:
                found.setdefault(str(error), error)
        return list(found.values())

    def known_toolchain(self, build: Build, recipe: Recipe) -> Toolchain | None:
        """The image's id and each package's version, once the image was made and the versions were found; else None."""
        if self._engine.problem() or why_not_here(base_image(build, self._images)):
            return None
        base = self._fitting_base(build)
        image, record = self._engine.image_id(tag(base.spec)), self._lock_record(build, recipe, base)
        if image is None or not record.exists():
            return None
        return self._identity(base, image, record.read_text().splitlines())

    def toolchain(self, build: Build, recipe: Recipe, *, log: Path) -> Toolchain:
        """The same, after making the image and finding the versions where that was not done yet."""
        _platform_of(build)
        _toolkit_of(build)
        base = self._fitting_base(build)
        return self._identity(base, self._image(base, log), self._packages(build, recipe, base, log))

    def _identity(self, base: Base, image: str, packages: Sequence[str]) -> Toolchain:
        parts = {"image": image, "packages": " ".join(packages), "scripts": scripts_digest()}
        # On this side: what drives the container, and the final repair.
        parts |= {"cibuildwheel": version("cibuildwheel"), **repair_tools()}
        return Toolchain(self.name, base.ships.python, tuple(sorted(parts.items())))

    def compile(self, job: Job, stage: Callable[[str], None]) -> Path:
        """Build one wheel and graft into it what it needs of the image; it is put into `job.work/raw`."""
        label = f"{LABEL}={job.mark}"
        self._engine.reap(label)
        stage("environment")
        raw, temporary = job.work / "raw", job.work / "tmp"
        temporary.mkdir(exist_ok=True)
        image = tag(self._fitting_base(job.build).spec)
        settings, _ = write_inputs(job, image=image, torch_index=self._torch_index(job.build))
        # -P: a source tree with a folder named like one of cibuildwheel's imports must not shadow it.
        argv = [sys.executable, "-P", "-m", "cibuildwheel", "--only", identifier(job)]
        argv += ["--output-dir", str(raw), "--config-file", str(settings), str(job.source)]
        variables = {k: v for k, v in os.environ.items() if not _MEDDLING.match(k)}
        variables |= {**index_variables(), "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        start = job.log.stat().st_size if job.log.exists() else 0
        try:
            with _announced(job.log, start, stage):
                status = run(argv, log=job.log, job=job.mark, cwd=job.source, env=variables)
        finally:
            # Also when the farm is ending: cibuildwheel is killed then, and its container would go on.
            try:
                self._engine.reap(label)
            except MissingToolError as error:  # how the build ended counts more; the next run reaps again
                with job.log.open("a", encoding="utf-8") as stream:
                    stream.write(f"its container may still be there: {error.sentence}\n")
            forget(job)
        if status != 0:
            raise _failure(job, start, status)
        wheels = sorted(raw.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildError(f"the build made {len(wheels)} wheels where one was due", stage="compile", log=job.log)
        return wheels[0]

    def libraries(self, job: Job) -> frozenset[str]:
        """What torch and its CUDA packages brought in the container: their metadata came out of it."""
        return provided_libraries(job.work / "container" / "site")

    def _fitting_base(self, build: Build) -> Base:
        """The base image for a build; raises MissingToolError if its Python or compiler does not fit."""
        name = base_image(build, self._images)
        if name not in self._bases:
            self._bases[name] = find_base(self._engine, name)
        base = self._bases[name]
        oldest, newest = Compat.load().gcc_range(build.torch, build.cuda)
        if not oldest <= base.ships.gcc <= newest:
            raise MissingToolError(
                f"the base image {name} has gcc {base.ships.gcc}, and torch {build.torch} with CUDA"
                f" {build.cuda} takes {oldest} to {newest}",
                where="images",
                hints=["name an image with such a compiler under `images:` in matrix.yaml"],
            )
        if base.ships.python not in build.pythons:
            raise MissingToolError(
                f"the base image {name} has Python {base.ships.python}, and {build} takes"
                f" {' or '.join(map(str, build.pythons))}",
                where="images",
                hints=[
                    f"`--python {base.ships.python}` selects the cells this image can build",
                    "name an image with that Python under `images:` in matrix.yaml",
                    "`--executor local` uses this machine's Pythons",
                ],
            )
        return base

    def _image(self, base: Base, log: Path) -> str:
        name = tag(base.spec)
        with self._store.lock(f"image-{name.rsplit(':', 1)[1]}"):
            if made := self._engine.image_id(name):
                return made
            with tempfile.TemporaryDirectory(prefix="buildfarm-secrets-") as folder:
                network = Path(folder, "network")
                settings = {**index_variables(), **ca_variables("/run/secrets/ca")}
                network.write_text(shell_settings(settings))
                secrets = {"ca": ca_bundle(), "network": network}
                return self._engine.build(
                    render(base.spec), name, log=log, job=self._store.mark(f"image-{name}"), secrets=secrets
                )

    def _wanted(self, build: Build, recipe: Recipe, base: Base) -> tuple[list[str], list[str], str]:
        """Requirements, PyTorch's index where it is needed, and the platform in uv's words."""
        default = Compat.load().is_default_variant(build.torch, build.cuda)
        extra = recipe.build_requires
        requirements = build_requirements(build.torch, build.cuda, extra, default_variant=default, toolkit=True)
        platform = f"{build.platform.removeprefix('linux_')}-{base.ships.glibc}"
        return requirements, self._torch_index(build), platform

    def _lock_record(self, build: Build, recipe: Recipe, base: Base) -> Path:
        """Where the exact versions of a build's packages are kept."""
        key = digest_of([*self._wanted(build, recipe, base), str(base.ships.python)])[:16]
        return self._store.root / "envs" / f"docker-{key}.txt"

    def _packages(self, build: Build, recipe: Recipe, base: Base, log: Path) -> list[str]:
        """The exact versions the build's requirements resolve to, kept from the first time on."""
        requirements, index, platform = self._wanted(build, recipe, base)
        record = self._lock_record(build, recipe, base)
        with self._store.lock(f"env-{record.stem}"):
            if not record.exists():
                with tempfile.TemporaryDirectory(prefix="buildfarm-lock-") as folder:
                    wanted, locked = Path(folder, "wanted.txt"), Path(folder, "locked.txt")
                    wanted.write_text("\n".join(requirements) + "\n")
                    argv = [str(find_uv()), "pip", "compile", "--quiet", "--no-config", "--no-header"]
                    argv += ["--no-annotate", "--python-version", str(base.ships.python)]
                    argv += ["--python-platform", platform, *(f"--index={url}" for url in index)]
                    argv += ["--output-file", str(locked), str(wanted)]
                    start = log.stat().st_size if log.exists() else 0
                    if run(argv, log=log, job=self._store.mark(f"env-{record.stem}"), env=uv_variables()) != 0:
                        raise MissingToolError(
                            f"no versions of the packages for {build} go together: {_last_error(log, start)}",
                            where=" and ".join([*index, index_setting()]),
                            hints=[f"wanted: {', '.join(requirements)}", f"uv's own words are in {log}"],
                        )
                    write_whole(record, locked.read_bytes())
        return record.read_text().splitlines()

    def _torch_index(self, build: Build) -> list[str]:
        default = Compat.load().is_default_variant(build.torch, build.cuda)
        arguments = self._environments.index_arguments(build.cuda, default_variant=default)
        return [argument for argument in arguments if argument != "--index"]


def _platform_of(build: Build) -> None:
    here = f"linux_{os.uname().machine}"
    if build.platform != here:
        raise MissingToolError(
            f"containers on this machine are {here}, and {build} is for {build.platform}",
            hints=["run the farm on a machine of that platform"],
        )


def _toolkit_of(build: Build) -> None:
    if build.cuda < FIRST_PACKAGED:
        raise MissingToolError(
            f"the docker executor has no CUDA {build.cuda} toolkit: the package index holds a whole nvcc from"
            f" {FIRST_PACKAGED} on, and toolkits inside base images are not used yet",
            hints=[
                "`--executor local` takes a toolkit from CUDA_HOME, with `--stand-in` another of its major",
                f"select CUDA {FIRST_PACKAGED} or newer (`--torch 2.11 --cuda 13.0`)",
            ],
        )


@contextmanager
def _announced(log: Path, start: int, stage: Callable[[str], None]) -> Iterator[None]:
    """Tell of each stage as cibuildwheel's log reaches it."""
    ended = threading.Event()

    def follow() -> None:
        told = "environment"
        while not ended.wait(0.5):
            if (now := _stage(log, start)) != told:
                told = now
                stage(now)

    follower = threading.Thread(target=follow, name="stages", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def _stage(log: Path, start: int) -> str:
    """How far cibuildwheel came, by what it said since `start`."""
    now = "environment"
    for line in _since(log, start):
        now = next((name for words, name in _STEPS.items() if words in line), now)
    return now


def _since(log: Path, start: int) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read().decode(errors="replace").splitlines()


def _last_error(log: Path, start: int = 0) -> str:
    """The last line that complains; cibuildwheel's own summary only where it stands alone."""
    complaint = re.compile(r"(?:.*\b(?:error|cause):|ERROR|\u00d7|\u2570\u2500\u25b6):?\s*(.+)", re.IGNORECASE)
    said = [found for line in _since(log, start) if (found := complaint.match(line.strip()))]
    own = [found for found in said if "cibuildwheel: error" not in found[0]]
    return (own or said)[-1][1][:300] if said else "it gave no reason"


def _failure(job: Job, start: int, status: int) -> BuildError:
    """The failed run as a sentence, with the stage it failed in."""
    stage = _stage(job.log, start)
    hints = [f"the whole output is in {job.log}"]
    if status == _PURE_WHEEL:
        return BuildError(
            "the build made a wheel with no library in it",
            stage="compile",
            log=job.log,
            hints=["its setup may look for a GPU: try `assume_cuda: true`, or FORCE_CUDA in `env`", *hints],
        )
    if stage == "compile":
        return compile_failure(job, status)
    what = "auditwheel refused the wheel" if stage == "repair" else "the container did not become ready"
    return BuildError(f"{what}: {_last_error(job.log, start)}", stage=stage, log=job.log, hints=hints)
