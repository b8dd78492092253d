"""The local executor: environments of uv, a CUDA toolkit from the package index or from CUDA_HOME, no containers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from builder.confinement import confined, weakness
from builder.errors import BuildError, BuildfarmError, Code, MissingToolError
from builder.gate.amounts import join_names
from builder.log import print_warning
from builder.matrix.axes import Cuda, Python
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.process import log_size, run, text_since
from builder.progress.display import WAITS
from builder.records import Part, Toolchain
from builder.wheels.build_dir import fixed_folder
from builder.wheels.build_scripts import PACKAGE, identity, script_command
from builder.wheels.build_scripts.identity import DIFFERS
from builder.wheels.build_scripts.job_file import write_job
from builder.wheels.build_scripts.new_environment import link_toolkit, torch_mismatch
from builder.wheels.failures import answered_identity, asking, compile_failure, identity_question, other_identity
from builder.wheels.job import Compiled, CompileJob, NotPreparedError, Resolver, config_setting_options, problems_of
from builder.wheels.repair.repair import provided_libraries, with_built_libraries, with_repair_tools
from builder.wheels.sccache.configure import as_set, cache_variables, find_sccache, read_statistics, with_reuse
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.toolchain.environments import (
    Environment,
    Environments,
    build_requirements,
    check_needed,
    locked_version,
    wheels_only,
)
from builder.wheels.toolchain.machine import HostCompiler, Toolkit, find_host_compiler, find_python, find_toolkit
from builder.wheels.toolchain.uv import find_uv, uv_variables
from builder.wheels.variables import build_variables, merge_variables, prefix_map_flags, shell_variables


class LocalExecutor:
    """Builds on this machine; see `Executor`."""

    name = "local"
    compiles_in_turn = True  # see `LocalBuild._in_place`

    def __init__(
        self,
        environments: Environments,
        *,
        minor_mismatch: bool = False,
        packages: Sequence[str] = (),
        compiler_cache: bool = True,
    ) -> None:
        """`packages` are exact requirements to build with; empty: the recipe's requirements are resolved.

        `compiler_cache` is whether compilers run through sccache, if this machine has it.
        """
        self.environments = environments
        self.shares_objects = self.compiler_cache = compiler_cache
        self._minor_mismatch = minor_mismatch
        self._packages = tuple(packages)
        self._warn_once = cache(print_warning)

    def problems(self, builds: Sequence[Build], recipes: Mapping[str, Recipe]) -> list[BuildfarmError]:
        """Missing Pythons, headers, toolkits, compilers; if none is missing, packages. Each distinct problem once."""
        checks = (partial(check, build) for build in builds for check in (self._python_for, self._compiler_for))
        of_packages = (partial(self._check_packages, build, recipes[build.extension]) for build in builds)
        return problems_of(checks) or problems_of(of_packages)

    def toolkit_problems(self, builds: Sequence[Build]) -> list[BuildfarmError]:
        """Missing toolkits and compilers; each distinct problem once. Downloads nothing."""
        return problems_of(partial(self._compiler_for, build) for build in builds)

    def prepare(self, build: Build, recipe: Recipe, *, log: Path, cached_only: bool = False) -> LocalBuild:
        """Find Python, toolkit and compiler, and the exact packages; see `Executor.prepare`."""
        toolkit, (requirements, index) = self._toolkit(build), self._requirements(build, recipe)
        python, packages = _python_here(build), None
        if python:
            packages = self._packages or self.environments.locked(python, requirements, index=index)
        if packages is None:
            if cached_only:
                raise NotPreparedError
            python = self._python_for(build)
            packages = self.environment(python, build, recipe, log).packages
        python, compiler, program = python or self._python_for(build), self._compiler_for(build), find_sccache()
        toolchain = with_repair_tools(
            Toolchain(
                executor=self.name,
                python=python,
                packages=tuple(packages),
                others={
                    Part.PYTHON_VERSION: self.environments.interpreter(python).version,
                    Part.CXX: f"{Path(compiler.cxx).name} {compiler.version}",
                    Part.CC: Path(compiler.cc).name,
                    Part.NVCC: toolkit.version if toolkit.home else locked_version(packages, "nvidia-cuda-nvcc"),
                    Part.REQUESTED_CUDA: f"CUDA {toolkit.requested_cuda}" if toolkit.requested_cuda else None,
                    Part.UV: version("uv"),
                    Part.SCCACHE: version("sccache") if program and self.compiler_cache else None,
                },
            )
        )
        return LocalBuild(self, python, toolkit, compiler, toolchain)

    def record(self, build: Build, recipe: Recipe) -> Path:
        """See `Executor.record`."""
        requirements, index = self._requirements(build, recipe)
        return self.environments.record(self._python_for(build), requirements, index=index)

    def resolver(self, build: Build, python: Python) -> Resolver:  # noqa: ARG002 - this machine is that of each build
        """See `Executor.resolver`."""
        return Resolver(str(self.environments.interpreter(python).path))

    def images(self, build: Build, log: Path) -> dict[str, str]:  # noqa: ARG002
        """See `Executor.images`: none."""
        return {}

    def environment(self, python: Python, build: Build, recipe: Recipe, log: Path) -> Environment:
        """The environment of a build, which exists afterwards; raises MissingToolError for a torch of another CUDA."""
        requirements, index = self._requirements(build, recipe)
        options = ["--no-deps", *wheels_only(self._packages, recipe.build_requires)] if self._packages else []
        environment = self.environments.ensure(python, requirements, index=index, log=log, options=options)
        if problem := torch_mismatch(environment.site_packages, str(build.cuda)):
            raise MissingToolError(
                problem,
                Code.SOURCE_DIFFERS,
                hints=["set `torch_index` in matrix.yaml to an index of torch's CUDA variants"],
            )
        return environment

    def confined(self, argv: Sequence[str], writable: Sequence[Path]) -> list[str]:
        """The command line that lets a build change files in these folders only; they exist afterwards."""
        if weak := weakness():
            self._warn_once(f"builds can {weak}; use `--executor docker` for sources that you do not trust")
        for folder in writable:
            folder.mkdir(parents=True, exist_ok=True)
        return confined(argv, writable)

    def _check_packages(self, build: Build, recipe: Recipe) -> None:
        python, (requirements, index) = self._python_for(build), self._requirements(build, recipe)
        if not self._packages:
            self.environments.check(python, requirements, index=index)
            return
        options = ["--python", str(self.environments.interpreter(python).path)]
        options += wheels_only(self._packages, recipe.build_requires)
        wanted = self._recipe_requirements(build, recipe)
        check_needed(self._packages, wanted, options, index=index, store=self.environments.store)

    def _requirements(self, build: Build, recipe: Recipe) -> tuple[list[str], list[str]]:
        requirements = list(self._packages) or self._recipe_requirements(build, recipe)
        return requirements, self.environments.torch_index(build.torch, build.cuda)

    def _recipe_requirements(self, build: Build, recipe: Recipe) -> list[str]:
        packaged = self._toolkit(build).home is None
        return build_requirements(build.torch, build.cuda, recipe.build_requires, toolkit=packaged)

    def _python_for(self, build: Build) -> Python:
        """The Python of `_python_here`; if there is none, the build's first Python is downloaded.

        Raises MissingToolError when that is not possible.
        """
        if here := _python_here(build):
            return here
        self.environments.interpreter(build.pythons[0], headers=build.needs_python)
        return build.pythons[0]

    def _toolkit(self, build: Build) -> Toolkit:
        return find_toolkit(build.cuda, minor_mismatch=self._minor_mismatch)

    def _compiler_for(self, build: Build) -> HostCompiler:
        """A host compiler that the toolkit's own nvcc accepts, also when its minor version differs from the cell's."""
        return find_host_compiler(Cuda.of_toolkit(self._toolkit(build).version), build.torch)


@dataclass(frozen=True)
class LocalBuild:
    """The tools of one build on this machine; see `Prepared`."""

    _executor: LocalExecutor
    _python: Python
    _toolkit: Toolkit
    _compiler: HostCompiler
    toolchain: Toolchain

    def compile(self, job: CompileJob, stage: Callable[[str], None]) -> Compiled:
        """Build one wheel without isolation in the build's environment."""
        start, question = log_size(job.log), identity_question(job)
        with self._in_place(job, stage) as (environment, source, run_there):
            argv = [str(find_uv()), "build", "--wheel", "--no-build-isolation", "--no-config", "--python"]
            argv += [str(environment.interpreter), *config_setting_options(job.recipe)]
            argv += ["--out-dir", str(job.raw), str(source)]
            if question:  # the line that begins with `+` separates the output of both, as in the log of every program
                ask = asking(question, environment.interpreter, identity.__file__, source)
                argv = ["sh", "-c", f'{ask}; echo "+ $1 $2"; exec "$@"', "sh", *argv]
            status = run_there(argv)
            if changed := self._executor.environments.changes(environment):
                raise BuildError(  # the record of the wheel would not be true
                    f"the source changed the packages of its build environment: {join_names(changed)}",
                    Code.ENVIRONMENT_FAILED,
                    stage="compile",
                    log=job.log,
                    hints=[
                        "name the packages in `build_requires` in the recipe, and delete the call of pip with a patch",
                        "the next build uses a new environment",
                        f"the full output is in {job.log}",
                    ],
                )
            answer = answered_identity(text_since(job.log, start))
            if status == DIFFERS and answer and (error := other_identity(job, *answer)):
                raise error
            if status != 0:
                raise compile_failure(job, status, str(source))
            libraries = provided_libraries(environment.site_packages, job.recipe.requires)
            wheel, out = job.raw_wheel(), job.work / "with-libraries"
            wheel = with_built_libraries(wheel, source, out, provided=libraries, log=job.log, owner=job.owner)
        return Compiled(wheel, libraries, read_statistics(job.statistics) if find_sccache() else None)

    def metadata(self, job: CompileJob, stage: Callable[[str], None]) -> str:
        """METADATA of the wheel, as the build backend makes it before a compile; empty if it makes none."""
        kept = job.raw / "METADATA"  # in a folder that the build may write to
        job.raw.mkdir(exist_ok=True)
        question = identity_question(job, keep=kept)
        with self._in_place(job, stage) as (environment, source, run_there):
            run_there(["sh", "-c", asking(question, environment.interpreter, identity.__file__, source)])
            self._executor.environments.changes(environment)
        return kept.read_text(encoding="utf-8") if kept.exists() else ""

    @contextmanager
    def _in_place(
        self, job: CompileJob, stage: Callable[[str], None]
    ) -> Iterator[tuple[Environment, Path, Callable[[Sequence[str]], int]]]:
        """The environment of a build, its source in the build's place, and a function that runs a program there.

        The program calls its compilers through the launchers; the function returns its exit status. All builds of an
        extension have one place, in turn: paths are in what compilers read and write, and so in the keys of objects.
        """
        stage("environment")
        environment = self._executor.environment(self._python, job.build, job.recipe, job.log)
        home = self._toolkit.home or environment.packaged_toolkit(job.build.cuda)
        if not self._toolkit.home:
            link_toolkit(home, self._compiler.cc)
        with fixed_folder(job.build.extension, job.work / "fixed", lambda who: stage(WAITS + who)) as place:
            stage("compile")
            inside = job.source.relative_to(job.tree)
            tree = Path(shutil.move(job.tree, place / "src"))
            variables = self._variables(job, environment, home, place)
            launcher = script_command(sys.executable, PACKAGE.parent, job.file, "with-compiler-cache")
            own = [place, job.raw, job.statistics, Path(variables["SCCACHE_DIR"]).parent]

            def run_there(argv: Sequence[str]) -> int:
                command = self._executor.confined([*launcher, *argv], own)
                return run(command, log=job.log, owner=job.owner, cwd=job.work, env=variables)

            yield environment, tree / inside, run_there

    def _variables(self, job: CompileJob, environment: Environment, home: Path, place: Path) -> dict[str, str]:
        """The variables of a build that calls its compilers through the launchers; also writes the job's file."""
        executor, tree = self._executor, place / "src"
        variables = shell_variables(uv_variables())
        maps = prefix_map_flags({tree: "."}, stores={environment.folder: "environment"})
        variables |= merge_variables(maps, build_variables(job))
        variables |= {
            "PATH": f"{environment.folder / 'bin'}{os.pathsep}{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "CUDA_HOME": str(home),
            "CC": self._compiler.cc,
            "CXX": self._compiler.cxx,
            # A repository around the place of the build is not that of the source.
            "GIT_CEILING_DIRECTORIES": str(place),
        }
        if job.recipe.assume_cuda:
            variables["PYTHONPATH"] = str(Path(__file__).parent / "assume_cuda")
        variables = merge_variables(variables, job.recipe.env)
        program = find_sccache()
        job.statistics.mkdir(parents=True, exist_ok=True)
        # Each extension has a folder of its own: what a build writes there reaches no other extension.
        kept = Path(variables.get("SCCACHE_DIR") or executor.environments.store.root / "objects")
        settings = CacheSettings(
            objects=place / "objects",
            statistics_dir=job.statistics,
            toolkit=home,
            site=environment.site_packages,
            cc=self._compiler.cc,
            cxx=self._compiler.cxx,
            cache_dir=kept / job.recipe.name / "kept",
            socket=place / "server",
            sccache=str(program or "sccache"),
        )
        enabled = executor.compiler_cache and program is not None
        settings = with_reuse(settings, tree, enabled=enabled, reuse=job.reuse)
        changed = cache_variables(settings, variables["PATH"])
        changed["PYTHONPATH"] = f"{settings.layout.site}:{variables.get('PYTHONPATH', '')}".rstrip(":")
        changed |= {n: value for n, value in job.recipe.env.items() if n in changed and n != "SCCACHE_DIR"}
        write_job(job.file, as_set(settings, {**variables, **changed}))
        (temporary := place / "tmp").mkdir()
        changed |= {"UV_CACHE_DIR": str(place / "uv"), "TMPDIR": job.recipe.env.get("TMPDIR", str(temporary))}
        return {**variables, **changed}


def _python_here(build: Build) -> Python | None:
    """The first of the build's Pythons that this machine has with headers; if the headers are not needed, also without.

    An extension of the class `cpython` needs them.
    """
    here = {python: found for python in build.pythons if (found := find_python(python))}
    fitting = [python for python, found in here.items() if found.headers]
    return next(iter(fitting or (() if build.needs_python else here)), None)
