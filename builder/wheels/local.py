"""The local executor: uv environments, the toolkit from the package index or CUDA_HOME, no container engine."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError
from builder.images.files import templates
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
    locked_version,
    torch_cuda,
    uv_variables,
)
from builder.wheels.object_cache import (
    SITE,
    cache_variables,
    cache_version,
    compiler_variables,
    find_cache,
    not_reusing,
    scripts_digest,
)
from builder.wheels.objects import Objects, read_objects
from builder.wheels.place import fixed_folder, joined, path_flags
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

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")

#: How compilers, linkers, git and Python begin the line that says what is wrong.
_SAYS_ERROR = re.compile(r"(?i)error:|fatal:|undefined reference to|cannot find -l")


#: How they tell of SIGKILL, which on a machine short of memory is the kernel's.
_SAYS_KILLED = re.compile(r"\bKilled\b|\bsignal:? 9\b|\bSIGKILL\b|\b(?:code|status):? (?:-9|137)\b")


def _header_hints(python: Python) -> list[str]:
    return [
        f"`apt-get install python{python.major}.{python.minor}-dev` (or your system's)",
        f"`uv python install {python}` puts a Python with its headers beside the system's",
    ]


class LocalExecutor:
    """Builds on this machine; see `Executor`."""

    name = "local"
    shares_objects = False  # a build's source lies at a path of its own, which nvcc's steps are told

    def __init__(self, environments: Environments, *, stand_in: bool = False, packages: Sequence[str] = ()) -> None:
        """`packages` are exact requirements to build with, in place of what a recipe's would resolve to."""
        self._environments = environments
        self._stand_in = stand_in
        self._packages = tuple(packages)

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
        python = self._python_for(build)
        packages = self._packages or self._environments.locked(python, requirements, index=index)
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
            "nvcc": toolkit.version if toolkit.home else locked_version(packages, "nvidia-cuda-nvcc"),
            "packages": " ".join(packages),
            "uv": version("uv"),
            **repair_tools(),
        }
        if program := find_cache():
            parts |= {"sccache": cache_version(program), "scripts": scripts_digest()}
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
        with (
            fixed_folder(str(job.build), job.work / "fixed") as place,
            tempfile.TemporaryDirectory(prefix="buildfarm-") as short,
        ):
            source = Path(shutil.move(job.source, place / "src"))
            variables = self._variables(job, environment, home, source)
            argv = [str(find_uv()), "build", "--wheel", "--no-build-isolation", "--no-config", "--python"]
            argv += [str(environment.interpreter), "--out-dir", str(raw), str(source)]
            if program := find_cache():
                site, socket = environment.site_packages, Path(short, "server")
                variables |= self._cached(job, variables, place, socket, site, str(home))
                variables["BUILDFARM_SCCACHE"] = str(program)
                argv = ["sh", str(templates() / "objects.sh"), "wrap", *argv]
            status = run(argv, log=job.log, job=job.mark, cwd=job.work, env=variables)
        wheels = sorted(raw.glob("*.whl")) if raw.is_dir() else []
        if status != 0:
            raise compile_failure(job, status)
        if len(wheels) != 1:
            raise BuildError(f"the build made {len(wheels)} wheels where one was due", stage="compile", log=job.log)
        return wheels[0]

    def objects(self, job: Job) -> Objects | None:
        """What the object cache did, where this machine has one."""
        told = job.work / "objects"
        return read_objects(told, (told / "source").read_text()) if told.is_dir() else None

    def libraries(self, job: Job) -> frozenset[str]:
        """What torch and its CUDA packages bring in the build's environment."""
        site_packages = self._environment(job.build, job.recipe, job.log).site_packages
        return provided_libraries(site_packages, job.recipe.requires)

    def _variables(self, job: Job, environment: Environment, home: Path, source: Path) -> dict[str, str]:
        compiler = self._compiler_for(job.build)
        variables = {k: v for k, v in uv_variables().items() if _KEPT.fullmatch(k)}
        folders = {source: ".", environment.folder: "environment"}
        variables |= joined(path_flags(folders, compiler.version), build_variables(job))
        variables |= {
            "PATH": f"{environment.folder / 'bin'}{os.pathsep}{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "CUDA_HOME": str(home),
            "CC": compiler.cc,
            "CXX": compiler.cxx,
        }
        if job.recipe.assume_cuda:
            variables["PYTHONPATH"] = str(Path(__file__).parent / "assume_cuda")
        return joined(variables, job.recipe.env)

    def _cached(
        self, job: Job, variables: Mapping[str, str], place: Path, socket: Path, site: Path, home: str
    ) -> dict[str, str]:
        """What changes in a build's variables with the object cache before its compilers."""
        compiler = self._compiler_for(job.build)
        told, objects = job.work / "objects", str(place / "objects")
        told.mkdir()
        (told / "source").write_text(str(place / "src"))
        kept = variables.get("SCCACHE_DIR") or str(self._environments.store.root / "objects" / "kept")
        changed = cache_variables(objects, str(told), kept, str(socket))
        changed |= compiler_variables(
            objects, toolkit=home, site=str(site), cc=compiler.cc, cxx=compiler.cxx, path=variables["PATH"]
        )
        changed |= not_reusing(place / "src", reuse=job.reuse)
        changed["PYTHONPATH"] = f"{objects}/{SITE}:{variables.get('PYTHONPATH', '')}".rstrip(":")
        return changed | {name: value for name, value in job.recipe.env.items() if name in changed}

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
        requirements = list(self._packages) or build_requirements(
            build.torch, build.cuda, extra, default_variant=default, toolkit=packaged
        )
        return requirements, self._environments.index_urls(build.cuda, default_variant=default)

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
    """What every executor tells a build: the archs, CUDA without a GPU, parallelism, no dates, no debug information."""
    return {
        "TORCH_CUDA_ARCH_LIST": ";".join(str(arch) for arch in job.build.archs),
        "FORCE_CUDA": "1",
        "MAX_JOBS": str(job.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(job.jobs),
        "SOURCE_DATE_EPOCH": EPOCH,
        # Beside the object file: in the folder for temporary files nvcc calls them by its process id, and each object
        # names the file it came from.
        "NVCC_PREPEND_FLAGS": "-objtemp",
        # Python's own flags say -g, which setuptools hands on: more than half of what a compile with torch's headers
        # costs, for what no released wheel carries. A -g of the recipe or of the source comes later and wins.
        "CPPFLAGS": "-g0",
        "PYTHONNOUSERSITE": "1",
        "LC_ALL": "C.UTF-8",  # compilers speak one language, the one `compile_failure` reads
        "PYTHONHASHSEED": "0",
        # torch's own table is wrong for 12.8, 12.9 and silent above 13.0; the farm checks the compiler against nvcc's.
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
    }


def compile_failure(job: Job, status: int, lines: Sequence[str] | None = None) -> BuildError:
    """The failed compile as a sentence: killed by a signal, out of memory, or the first line that says `error`.

    `lines` are what the compile said; without them all that the log holds of the last program.
    """
    if lines is None:
        lines = job.log.read_text(errors="replace").splitlines()
        lines = lines[max((n for n, line in enumerate(lines) if line.startswith("+ ")), default=0) :]
    errors = [line.strip() for line in lines if _SAYS_ERROR.search(line)]
    hints = [f"the whole output is in {job.log}"]
    if status < 0:
        return BuildError(f"the compile was ended by signal {-status}", stage="compile", log=job.log, hints=hints)
    if killed(lines):
        fewer = max(1, job.jobs // 2)
        hints.insert(0, f"`--jobs {fewer}` needs less memory at once; `memory_per_job` in the recipe teaches the farm")
        return BuildError("a compiler was killed, most likely for memory", stage="compile", log=job.log, hints=hints)
    if any("Python.h" in line for line in errors):
        hints[:0] = _header_hints(job.toolchain.python)
        return BuildError("Python's headers (Python.h) are missing", stage="compile", log=job.log, hints=hints)
    if disk_full(lines):
        return BuildError("the disk is full; nothing half-made was kept", stage="compile", log=job.log, hints=hints)
    first = errors[0][:300] if errors else f"the build ended with status {status}"
    if found := _NO_MODULE.search(first):
        hints.insert(0, f"`build_requires` in the recipe says what a build needs; `{found[1]}` was not there")
    return BuildError(first, stage="compile", log=job.log, hints=hints)


def killed(lines: Iterable[str]) -> bool:
    """Whether a program was ended by SIGKILL, as a shell, gcc, nvcc, setuptools or a container's 137 tell it."""
    return any(_SAYS_KILLED.search(line) for line in lines)


def disk_full(lines: Iterable[str]) -> bool:
    """Whether a program met a full disk, or a full quota."""
    return any("No space left on device" in line or "Disk quota exceeded" in line for line in lines)
