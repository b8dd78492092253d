"""The local executor: uv environments, the toolkit from the package index or CUDA_HOME, no container engine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError
from builder.matrix.axes import AbiClass, Cuda, Python
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import run
from builder.wheels.build import Job, Toolchain
from builder.wheels.environment import (
    Environment,
    Environments,
    build_requirements,
    link_toolkit,
    torch_cuda,
    uv_variables,
)
from builder.wheels.pythons import Interpreter, find_python, find_uv
from builder.wheels.repair import provided_libraries, repair_tools
from builder.wheels.toolkit import HostCompiler, find_host_compiler, find_toolkit

#: 1980-01-01, the oldest date a zip can hold: no build time in any file.
EPOCH = "315532800"

#: All that a build gets of the person's shell: who and where they are, and how to reach the network and caches.
#: Any other variable (CPATH, LIBRARY_PATH, a flag that some setup.py reads) would change what is compiled, and the
#: digest, which names what is built, does not hold it.
_KEPT = re.compile(
    r"HOME|USER|LOGNAME|PATH|TMPDIR|TZ|LANG|LC_.+|XDG_CACHE_HOME|(?:UV|PIP|SCCACHE)_.+|(?i:.+_proxy)"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)

#: How compilers, linkers, git and Python begin the line that says what is wrong.
_SAYS_ERROR = re.compile(r"(?i)error:|fatal:|undefined reference to|cannot find -l")


def _header_hints(python: Python) -> list[str]:
    return [
        f"`apt-get install python{python.major}.{python.minor}-dev` (or your system's)",
        f"`uv python install {python}` puts a Python with its headers beside the system's",
    ]


class LocalExecutor:
    """Builds on this machine; see `Executor`."""

    name = "local"

    def __init__(self, environments: Environments, *, stand_in: bool = False) -> None:
        self._environments = environments
        self._stand_in = stand_in

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[FarmError]:
        """Missing Pythons, headers, toolkits, compilers and packages, one sentence for each kind."""
        found: dict[str, FarmError] = {}
        for build in builds:
            lacking: list[FarmError] = []
            for check in (self._python_for, self._compiler_for):
                try:
                    check(build)
                except MissingToolError as error:
                    lacking.append(error)
            if not lacking:
                try:
                    requirements, index = self._requirements(build, recipes[build.extension])
                    self._environments.check(self._python_for(build), requirements, index=index)
                except FarmError as error:
                    lacking.append(error)
            for problem in lacking:
                found.setdefault(str(problem), problem)
        return list(found.values())

    def known_toolchain(self, build: Build, recipe: Recipe) -> Toolchain | None:
        """Exact versions of environment, nvcc and host compiler, once the environment was resolved; else None."""
        requirements, index = self._requirements(build, recipe)
        packages = self._environments.locked(self._python_for(build), requirements, index=index)
        return None if packages is None else self._identity(build, packages)

    def toolchain(self, build: Build, recipe: Recipe, *, log: Path) -> Toolchain:
        """The same, after making the environment where nothing is known of it yet."""
        known = self.known_toolchain(build, recipe)
        return known or self._identity(build, self._environment(build, recipe, log).packages)

    def _identity(self, build: Build, packages: Sequence[str]) -> Toolchain:
        python = self._python_for(build)
        toolkit = find_toolkit(build.cuda, stand_in=self._stand_in)
        compiler = self._compiler_for(build)
        parts = {
            "python": self._environments.interpreter(python).version,
            "c++": f"{Path(compiler.cxx).name} {compiler.version}",
            "cc": Path(compiler.cc).name,
            "nvcc": toolkit.version if toolkit.home else _locked(packages, "nvidia-cuda-nvcc"),
            "packages": " ".join(packages),
            "uv": version("uv"),
            **repair_tools(),
        }
        if toolkit.stands_in_for:
            parts["stands in for"] = f"CUDA {toolkit.stands_in_for}"
        return Toolchain(self.name, python, tuple(sorted(parts.items())))

    def compile(self, job: Job, stage: Callable[[str], None]) -> Path:
        """Build one wheel without isolation in the build's environment; the raw wheel lands in `job.work/raw`."""
        stage("environment")
        environment = self._environment(job.build, job.recipe, job.log)
        toolkit = find_toolkit(job.build.cuda, stand_in=self._stand_in)
        home = toolkit.home or link_toolkit(environment, job.build.cuda)
        stage("compile")
        raw = job.work / "raw"
        variables = self._variables(job, environment, home)
        argv = [str(find_uv()), "build", "--wheel", "--no-build-isolation", "--no-config", "--python"]
        argv += [str(environment.interpreter), "--out-dir", str(raw), str(job.source)]
        status = run(argv, log=job.log, job=job.mark, cwd=job.work, env=variables)
        wheels = sorted(raw.glob("*.whl")) if raw.is_dir() else []
        if status != 0:
            raise compile_failure(job, status)
        if len(wheels) != 1:
            raise BuildError(f"the build made {len(wheels)} wheels where one was due", stage="compile", log=job.log)
        return wheels[0]

    def libraries(self, job: Job) -> frozenset[str]:
        """What torch and its CUDA packages bring in the build's environment."""
        site_packages = self._environment(job.build, job.recipe, job.log).site_packages
        return provided_libraries(site_packages, job.recipe.requires)

    def _variables(self, job: Job, environment: Environment, home: Path) -> dict[str, str]:
        compiler = self._compiler_for(job.build)
        variables = {k: v for k, v in uv_variables().items() if _KEPT.fullmatch(k)}
        variables |= build_variables(job)
        variables |= {
            "PATH": f"{environment.folder / 'bin'}{os.pathsep}{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "CUDA_HOME": str(home),
            "CC": compiler.cc,
            "CXX": compiler.cxx,
        }
        if job.recipe.assume_cuda:
            variables["PYTHONPATH"] = str(Path(__file__).parent / "assume_cuda")
        return variables | job.recipe.env

    def _environment(self, build: Build, recipe: Recipe, log: Path) -> Environment:
        requirements, index = self._requirements(build, recipe)
        environment = self._environments.ensure(self._python_for(build), requirements, index=index, log=log)
        if (got := torch_cuda(environment.site_packages)) != str(build.cuda):
            made_for = f"CUDA {got}" if got else "CPU only"
            raise MissingToolError(
                f"the index gave a torch {build.torch} for {made_for} where CUDA {build.cuda} was wanted",
                hints=["`torch_index` in matrix.yaml names the index of torch's CUDA variants"],
            )
        return environment

    def _requirements(self, build: Build, recipe: Recipe) -> tuple[list[str], list[str]]:
        default = Compat.load().is_default_variant(build.torch, build.cuda)
        packaged = find_toolkit(build.cuda, stand_in=self._stand_in).home is None
        extra = recipe.build_requires
        requirements = build_requirements(build.torch, build.cuda, extra, default_variant=default, toolkit=packaged)
        return requirements, self._environments.index_arguments(build.cuda, default_variant=default)

    @staticmethod
    def _python_for(build: Build) -> Python:
        """The first of the build's Pythons that this machine has, one with headers before one without."""
        here: dict[Python, Interpreter] = {}
        for python in build.pythons:
            if found := find_python(python):
                if found.headers:
                    return python
                here[python] = found
        if not here:
            Environments.interpreter(build.pythons[0])  # raises, with its hints
        python = next(iter(here))
        if build.abi is AbiClass.CPYTHON:
            raise MissingToolError(
                f"Python {python} on this machine has no headers (Python.h), which {build.extension} compiles against",
                where=str(here[python].path),
                hints=_header_hints(python),
            )
        return python

    def _compiler_for(self, build: Build) -> HostCompiler:
        """What the toolkit's own nvcc takes, also when it stands in for another."""
        toolkit = find_toolkit(build.cuda, stand_in=self._stand_in)
        return find_host_compiler(Cuda.parse(".".join(toolkit.version.split(".")[:2])), build.torch)


def build_variables(job: Job) -> dict[str, str]:
    """What every executor tells a build: the archs, CUDA without a GPU, parallelism, no dates."""
    return {
        "TORCH_CUDA_ARCH_LIST": ";".join(str(arch) for arch in job.build.archs),
        "FORCE_CUDA": "1",
        "MAX_JOBS": str(job.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(job.jobs),
        "SOURCE_DATE_EPOCH": EPOCH,
        "PYTHONNOUSERSITE": "1",
        "LC_ALL": "C.UTF-8",  # compilers speak one language, the one `compile_failure` reads
        "PYTHONHASHSEED": "0",
        # torch's own table is wrong for 12.8, 12.9 and silent above 13.0; the farm checks the compiler against nvcc's.
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
    }


def compile_failure(job: Job, status: int) -> BuildError:
    """The failed compile as a sentence: killed by a signal, out of memory, or the first line that says `error`."""
    said = job.log.read_text(errors="replace").splitlines()
    start = max((n for n, line in enumerate(said) if line.startswith("+ ")), default=0)
    errors = [line.strip() for line in said[start:] if _SAYS_ERROR.search(line)]
    hints = [f"the whole output is in {job.log}"]
    if status < 0:
        return BuildError(f"the compile was ended by signal {-status}", stage="compile", log=job.log, hints=hints)
    if any(re.search(r"\bKilled\b", line) for line in said[start:]):
        fewer = max(1, job.jobs // 2)
        hints.insert(0, f"`--jobs {fewer}` needs less memory at once; `memory_per_job` in the recipe teaches the farm")
        return BuildError("a compiler was killed, most likely for memory", stage="compile", log=job.log, hints=hints)
    if any("Python.h" in line for line in errors):
        hints[:0] = _header_hints(job.toolchain.python)
        return BuildError("Python's headers (Python.h) are missing", stage="compile", log=job.log, hints=hints)
    if "No space left on device" in "\n".join(said[start:]):
        return BuildError("the disk is full; nothing half-made was kept", stage="compile", log=job.log, hints=hints)
    first = errors[0][:300] if errors else f"the build ended with status {status}"
    return BuildError(first, stage="compile", log=job.log, hints=hints)


def _locked(packages: Sequence[str], project: str) -> str:
    return next((p.split("==")[1] for p in packages if p.startswith(f"{project}==")), "")
