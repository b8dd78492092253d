"""Why a compile failed, read from what the compilers printed."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from builder.diagnosis.first_error import clean, every_error, first_error, is_message, last_lines, last_words
from builder.diagnosis.known_errors import KnownCause, causes, header_hints, hints_for, missing_file_hints, reports
from builder.diagnosis.setup_script import SetupFacts
from builder.errors import DISK_HINT, BuildError
from builder.matrix.compat import and_list
from builder.matrix.config import PathSource, Recipe
from builder.wheels.job import CompileJob
from builder.wheels.toolchain.machine import header_hint

#: Variables that may switch a compile on or off.
_SWITCH = re.compile(r"CUDA|GPU|BUILD|COMPILE|EXT")
#: What CMake and CMakeLists.txt files say about a library or program that is not installed.
_NOT_FOUND = re.compile(r"not find|not found|FindPackage|missing", re.IGNORECASE)
#: Errors of one compile that are read for their causes.
_ERRORS = 500
#: The file that a compiler command compiles.
_COMPILES = re.compile(r"\s-c\s+(?:-c\s+)?(?P<file>[^\s-]\S*)")


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
        compiled = next((made["file"] for line in reversed(lines[:end]) if (made := _COMPILES.search(line))), "")
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
