"""What a compile shows: whether its source and its wheel are what the recipe describes, or why it failed."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builder.diagnosis.first_error import clean, every_error, first_error, is_message, last_lines, last_words
from builder.diagnosis.known_errors import KnownCause, causes, header_hints, hints_for, missing_file_hints, reports
from builder.diagnosis.setup_script import UNKNOWN, SetupFacts, read_setup_script, read_toml
from builder.diagnosis.target_version import target_version, written
from builder.errors import DISK_HINT, BuildError, Code
from builder.log import print_warning
from builder.matrix.axes import STABLE_FLOOR, AbiClass, Torch
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import RECIPE, PathSource, Recipe, name_pattern, version_pattern
from builder.records import CudaSources
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import oldest_torch
from builder.wheelfile.facts import read_facts
from builder.wheels.build_scripts.identity import ANSWER, DIFFERS
from builder.wheels.job import CompileJob
from builder.wheels.repair.repair import is_excluded
from builder.wheels.toolchain.machine import header_hint

_INCLUDE = re.compile(r'#\s*include\s*[<"](?:[^">]*/)?([^"/>]+\.cu)[">]')
_INCLUDING = frozenset({".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp"})
#: A line of a log that compiles a file: a compiler command, or what CMake prints instead.
_COMPILES = re.compile(r"\s-c\s|\.o\b|Building CUDA object")
#: Variables that may switch a compile on or off.
_SWITCH = re.compile(r"CUDA|GPU|BUILD|COMPILE|EXT")
#: What CMake and CMakeLists.txt files say about a library or program that is not installed.
_NOT_FOUND = re.compile(r"not find|not found|FindPackage|missing", re.IGNORECASE)
#: Errors of one compile that are read for their causes.
_ERRORS = 500
#: The file that a compiler command compiles.
_COMPILED_FILE = re.compile(r"\s-c\s+(?:-c\s+)?(?P<file>[^\s-]\S*)")


@dataclass(frozen=True)
class CompileFacts:
    """What the source of a build says before its compile, and what the compile showed of its wheel."""

    script: SetupFacts
    #: The oldest torch that a stable-ABI wheel needs by TORCH_TARGET_VERSION and, after the compile, by its libraries;
    #: None: no such thing.
    torch: Torch | None
    cuda: CudaSources
    no_library_hints: Sequence[str] = ()  # after the compile: why the wheel may have no library


def check_source(job: CompileJob) -> CompileFacts:
    """Check a source before its compile; raises BuildError for a torch that the build does not have."""
    script = read_setup_script(job.source)
    asks = "setup.py" if script.asks_for_gpu and not job.recipe.assume_cuda else ""
    return CompileFacts(script, check_target(job), find_cuda_sources(job.source, asks))


def check_wheel(wheel: Path, job: CompileJob, source: CompileFacts, log: str) -> CompileFacts:
    """Check the compiled wheel; `log` is the output of the build. Raises BuildError."""
    check_identity(wheel, job)
    check_compiled(wheel, job, source.script, log)
    left_out = left_out_extensions(job, log.splitlines())
    for sentence in left_out:
        print_warning(f"{job.recipe.name}: {sentence}")
    with WheelFile(wheel) as archive:
        names = archive.names
    unused = [one for one in job.recipe.wheel_exclude if not any(is_excluded(name, [one]) for name in names)]
    if unused:
        print_warning(f"{job.recipe.name}: `wheel_exclude` matches no file of the wheel: {', '.join(unused)}")
    hints = [*left_out, *no_library_hints(source.script, job.recipe)]
    needed: list[Torch | None] = []
    if job.build.abi is AbiClass.STABLE:
        functions = (symbol for library in read_facts(wheel).libraries for symbol in library.undefined)
        needed = [oldest_torch(functions), source.torch]
    torch = max(filter(None, needed), default=None)
    return replace(source, torch=torch, cuda=without_compiled(source.cuda, log), no_library_hints=hints)


def check_identity(wheel: Path, job: CompileJob) -> None:
    """Raises BuildError unless name and version of the compiled wheel are those of the recipe."""
    try:
        _, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise BuildError(str(error), stage="verify", log=job.log, where=wheel.name) from None
    if differs := other_identity(job, wheel.name.split("-")[0], version):
        raise differs


def other_identity(job: CompileJob, name: str, version: Version) -> BuildError | None:
    """The error of a wheel that gets another name or version than the recipe says; None if it gets the same.

    The name is compared as pip compares names. Of the version, the public part counts: setup.py may append a local one.
    """
    recipe, differences, hints = job.recipe, [], []
    if canonicalize_name(name) != canonicalize_name(job.build.wheel_name):
        differences.append(f"the name {name} instead of {job.build.wheel_name}")
        pattern = name_pattern(name, job.build.torch, job.build.cuda)
        hints.append(f"set `name: {pattern}` in {RECIPE}, or correct the name in setup.py or pyproject.toml")
    if Version(version.public) != Version(Version(job.build.version).public):
        differences.append(f"the version {version.public} instead of {job.build.version}")
        stated = version_pattern(version, job.build.torch, job.build.cuda)
        if isinstance(recipe.source, PathSource) and "{" not in stated:
            hints.append(f"write the same version into {RECIPE} and into the source")
        else:
            hints.append(f"set `version: {stated}` in {RECIPE}, or patch the version of the source (`patches`)")
    if not differences:
        return None
    return BuildError(
        f"the source makes a wheel with {' and '.join(differences)}",
        Code.VERSION_DIFFERS,
        stage="verify",
        log=job.log,
        where=str(recipe.folder / RECIPE),
        hints=hints,
    )


def check_target(job: CompileJob) -> Torch | None:
    """The torch that TORCH_TARGET_VERSION of the source names; None if its files do not say.

    Raises BuildError before the compile for a number that names no torch, and for a newer torch than that of the build:
    headers before torch 2.15 compile both without a word, and the library loads nowhere. A source may set the macro for
    new releases of torch only, so a newer torch is no error for another ABI class, and no number before torch 2.10.
    """
    torch, newest, recipe = job.build.torch, Compat.load().torches[-1], job.recipe
    settings = [f"{key}={value}" for key, values in recipe.config_settings.items() for value in values]
    options = [*settings, *(f"{key} {value}" for key, value in recipe.env.items())]
    target = target_version(job.source, torch, "\n".join(options), RECIPE)
    if target is None or target.suits(torch):
        return target.torch if target else None
    is_right = target.meant == target.torch
    if job.build.abi is not AbiClass.STABLE and (is_right or torch < STABLE_FLOOR):
        return None
    rule = f"[{{class: stable, torch: '>={target.torch.series}'}}]"
    hints = [f"lower TORCH_TARGET_VERSION, or set `abi: {rule}` in {RECIPE}"]
    means = f"torch {target.torch.series}"
    if not is_right:
        for_it = f"for torch {target.meant.series}, write {written(target.meant)}: each byte is a number in hexadecimal"
        hints = [for_it, *(hints if target.torch <= newest and target.torch.major else [])]
        means = means if target.torch.major else "no torch"
    raise BuildError(
        f"the source sets TORCH_TARGET_VERSION to {target.value:#x}, which means {means}, but this build is for torch"
        f" {torch.series}",
        Code.VERSION_DIFFERS,
        stage="compile",
        log=job.log,
        where=str(target),
        hints=hints,
    )


def identity_question(job: CompileJob, *, keep: Path | None = None) -> str:
    """The argument of `build_scripts.identity` for a source whose name or version only its build backend knows.

    Empty if both are constants in the files of the source. Without `keep`, the answer must be what the recipe says;
    `keep` is a file for METADATA of any name and version.
    """
    pyproject = read_toml(job.source / "pyproject.toml")
    system, project = pyproject.get("build-system", {}), pyproject.get("project")
    backend = system.get("build-backend", "setuptools.build_meta:__legacy__")
    if project is None and backend.startswith("setuptools."):
        project = {} if (job.source / "setup.cfg").exists() else read_setup_script(job.source).keywords
    constants = [(project or {}).get(key) for key in ("name", "version")]
    if not keep and all(isinstance(value, str) and UNKNOWN not in value for value in constants):
        return ""
    return json.dumps(
        {
            "backend": backend,
            "path": system.get("backend-path", []),
            "settings": {name: list(values) for name, values in job.recipe.config_settings.items()},
            "name": "" if keep else job.build.wheel_name,
            "version": "" if keep else Version(job.build.version).public,
            "keep": str(keep or ""),
        }
    )


def asking(question: str, python: str | Path, script: str, project: PurePath) -> str:
    """The shell command that asks this question in the folder of a source, by `identity.py` at the path `script`.

    It ends the shell with the status DIFFERS if the answer is not what the recipe says.
    """
    ask = shlex.join([str(python), str(script), question])
    return f"(cd {shlex.quote(str(project))} && exec {ask}); [ $? -ne {DIFFERS} ] || exit {DIFFERS}"


def answered_identity(output: str) -> tuple[str, Version] | None:
    """What the build backend answered, from the output of `build_scripts.identity`; None without a valid answer."""
    found = re.findall(rf"^{ANSWER} (\S+) (\S+)$", output, re.MULTILINE)
    with suppress(IndexError, InvalidVersion):
        return found[-1][0], Version(found[-1][1])
    return None


def check_compiled(wheel: Path, job: CompileJob, script: SetupFacts, log: str) -> None:
    """Raises BuildError for a wheel with libraries if no compiler was called.

    Such a wheel was downloaded, or its libraries are files of the source: its record would name a toolchain that made
    nothing of it. `launch.sh` writes the file `called` when it calls a compiler or a linker. A compiler that is called
    without a launcher shows in `log`, the output of the build.
    """
    if (job.statistics / "called").exists() or _COMPILES.search(log):
        return
    with WheelFile(wheel) as archive:
        libraries = [name for name in archive.names if re.search(r"\.so(?:\.[\d.]+)?$", name)]
    if libraries:
        switches = [name for name in script.variables if "BUILD" in name and name not in job.recipe.env]
        switch = switches[0] if switches else "the variable that turns this off"
        raise BuildError(
            f"the wheel was not built here: no compiler was called, and the wheel contains {libraries[0]}",
            Code.COMPILE_FAILED,
            stage="verify",
            log=job.log,
            where=wheel.name,
            hints=[
                f"setup.py may download a finished wheel: set {switch} under `env` in the recipe, or"
                " delete the download with a patch",
                "to test an official wheel, use `source: {wheel: NAME, version: VERSION}`",
            ],
        )


def find_cuda_sources(source: Path, asks_for_gpu: str) -> CudaSources:
    """The CUDA files of a source before it is compiled: none of them is compiled yet."""
    files = sorted(path for path in source.rglob("*.cu") if path.is_file())
    included: set[str] = set()
    if files:
        for path in source.rglob("*"):
            if path.suffix in _INCLUDING and path.is_file():
                included.update(_INCLUDE.findall(path.read_text(errors="replace")))
    own = [path.relative_to(source).as_posix() for path in files if path.name not in included]
    return CudaSources(len(files), tuple(own), asks_for_gpu)


def without_compiled(sources: CudaSources, log: str) -> CudaSources:
    """The CUDA files of a source after the compile. `log` is the output of the compilers."""
    commands = "\n".join(line for line in log.splitlines() if _COMPILES.search(line))
    left = tuple(
        name
        for name in sources.never_compiled
        if not re.search(rf"(?<![\w.-]){re.escape(name.rpartition('/')[2])}(?![\w-])", commands)
    )
    return CudaSources(sources.files, left, sources.asks_for_gpu)


class CompileError(BuildError):
    """A failed compile. `causes` are the known causes of its errors; empty if it failed in another way."""

    causes: tuple[KnownCause, ...] = ()


def compile_failure(
    job: CompileJob, status: int, source: str, lines: Sequence[str] | None = None, *, tree: Path | None = None
) -> CompileError:
    """The failed compile as a sentence: a signal, no memory, no disk, or the first error with its line of the source.

    `status` is the exit status, or negative the signal. `source` is the folder in which the compilers ran; the sentence
    has paths relative to it. `tree` is where the source is now; None: in `source`. `lines` are the output; None: what
    the last program wrote to the log.
    """
    if lines is None:
        lines = job.log.read_text(errors="replace").splitlines()
        lines = lines[max((n for n, line in enumerate(lines) if line.startswith("+ ")), default=0) :]
    error = first_error(lines, source, tree or Path(source))
    hints = [f"the full output is in {job.log}"]

    def failure(sentence: str, *excerpt: str) -> CompileError:
        return CompileError(sentence, stage="compile", log=job.log, hints=hints, excerpt=excerpt)

    if status < 0:
        return failure(f"the compile was killed by signal {-status}")
    if (killed := was_killed(lines)) or _any("no-memory", lines):
        fewer = max(1, job.jobs // 2)
        hints[:0] = [
            f"run the command again with `--jobs {fewer}`, which needs less memory",
            "raise `memory_per_job` in the recipe to limit the jobs of every run",
        ]
        # The command before the first line about missing memory.
        end = next((n for n, line in enumerate(lines) if _any("killed", [line]) or _any("no-memory", [line])), 0)
        compiled = next((made["file"] for line in reversed(lines[:end]) if (made := _COMPILED_FILE.search(line))), "")
        compiled = compiled.strip("'").removeprefix(f"{source}/")[-100:]
        at = f" while it compiled {compiled}" if compiled else ""
        if killed:
            return failure(f"a compiler was killed{at}, probably because memory ran out")
        return failure(f"a compiler had no more memory{at}")
    if disk_is_full(lines):
        hints.insert(0, DISK_HINT)
        return failure("the disk is full; unfinished files were deleted")
    if error is None:
        said = last_words(lines)
        return failure(f"the build exited with status {status}{': ' if said else ''}{said}", *last_lines(lines))
    if "Python.h: No such file" in error.message:
        hints.insert(0, header_hint(job.toolchain.python))
        return failure("Python's headers (Python.h) are missing", *error.excerpt)
    origin = job.recipe.source.path if isinstance(job.recipe.source, PathSource) else None
    container, packages = job.toolchain.executor == "docker", job.toolchain.packages
    tree = tree or Path(source)
    found = missing_file_hints(error.message, lines, source, tree, origin)
    found = found or hints_for(error, job.build.torch, job.build.cuda, container=container, packages=packages)
    found = found or header_hints(error.message, lines, tree)
    if not found and error.text.startswith("CMake Error") and _NOT_FOUND.search(error.text):
        found = ["CMake does not find something: install it; add a Python package to `build_requires`"]
    hints[:0] = found
    failed = failure(error.sentence, *(error.excerpt or (() if len(hints) > 1 else last_lines(lines))))
    every = islice(every_error(lines, source, tree), _ERRORS)
    failed.causes = tuple(causes(every, job.build.torch, job.build.cuda, packages))
    return failed


def left_out_extensions(job: CompileJob, lines: Sequence[str]) -> list[str]:
    """A sentence for each optional extension that setuptools left out, with the first error of its compile.

    `lines` are the output of the build, which succeeds nevertheless.
    """
    sentences, start = [], 0
    for n, line in enumerate(lines):
        if found := reports("optional-extension", line):
            error = first_error(lines[start:n], str(job.source))
            sentences.append(
                f"the wheel lacks {found['module']}, an extension with `optional=True` whose compile failed"
                + (f": {error.sentence}" if error else "")
            )
            start = n + 1
    return sentences


def no_library_hints(script: SetupFacts, recipe: Recipe) -> list[str]:
    """Why a source may have compiled nothing: its setup.py waits for an option, a variable or a GPU."""
    given = " ".join(text for values in recipe.config_settings.values() for text in values)
    hints = []
    if options := [name + "…" * name.endswith("=") for name in script.options if name not in given]:
        hints.append(
            f"setup.py reads {and_list(options[:8])} from its command line: if it compiles only with one of them, add"
            f" `config_settings: {{--global-option: [{options[0]}]}}` to the recipe"
        )
    switches = [name for name in script.variables if name not in recipe.env and _SWITCH.search(name)]
    if switches:
        hints.append(f"setup.py reads {and_list(switches[:5])}: set such a variable under `env` in the recipe")
    if script.asks_for_gpu and not recipe.assume_cuda:
        hints.append("setup.py asks torch for a GPU: add `assume_cuda: true` to the recipe")
    return hints or ["setup.py may have found no sources: read the log"]


def was_killed(lines: Iterable[str]) -> bool:
    """Whether SIGKILL terminated a program, as reported by a shell, gcc, nvcc, setuptools or a container's 137."""
    return _any("killed", lines)


def _any(failure: str, lines: Iterable[str]) -> bool:
    """Whether a line reports this failure. What a compiler says about a line of the source does not count."""
    return any(reports(failure, line) and not is_message(clean(line)) for line in lines)


def disk_is_full(lines: Iterable[str]) -> bool:
    """Whether a program reported a full disk or a full quota."""
    return any(reports("disk-full", line) for line in lines)
