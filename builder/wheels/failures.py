"""Why a compile failed, read from what the compilers printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from builder.errors import DISK_HINT, BuildError
from builder.wheels.job import CompileJob
from builder.wheels.toolchain.pythons import header_hint

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")

#: The start of the line in which compilers, linkers, git and Python name the error.
_ERROR = re.compile(r"(?i)error:|fatal:|^CMake Error|undefined reference to|cannot find -l")

#: An error at a place: `a.cu(12): error: …`, `a.cpp:3:1: fatal error: …`, or a symbol that the linker does not find.
_AT_A_PLACE = re.compile(r"^\S.*?(?::\d+(?::\d+)?|\(\d+\)): (?:\w+ )?error\b|undefined reference to")

#: What Python prints about a program that failed: the program's own message says more.
_WRAPPED = re.compile(
    r"CalledProcessError|Error compiling objects for extension|^error: command .* failed|^error: Failed to build"
)

#: The first line of an error of CMake; the message is in the indented lines below.
_CMAKE = re.compile(r"CMake Error(?: at |:)")

#: What git, curl and Python say about a server that cannot be reached.
_UNREACHABLE = re.compile(
    r"Could not resolve host|Name or service not known|Temporary failure in name resolution|Failed to connect to"
    r"|Each download failed"
)

#: How programs report SIGKILL, which the kernel sends when memory runs out.
_KILLED = re.compile(r"\bKilled\b|\bsignal:? 9\b|\bSIGKILL\b|\b(?:code|status):? (?:-9|137)\b")


def compile_failure(job: CompileJob, status: int, source: str, lines: Sequence[str] | None = None) -> BuildError:
    """The failed compile as a sentence: a signal, no memory, no disk, or the first line that names an error.

    `status` is the exit status, or negative the signal. `source` is the folder in which the compilers ran; the sentence
    has paths relative to it. `lines` are the output; None: what the last program wrote to the log.
    """
    if lines is None:
        lines = job.log.read_text(errors="replace").splitlines()
        lines = lines[max((n for n, line in enumerate(lines) if line.startswith("+ ")), default=0) :]
    named = [line.strip() for line in _with_cmake_messages(lines) if _ERROR.search(line)]
    # setup.py's own exception may come first, because compilers and Python write to different streams.
    errors = [line for line in named if not _WRAPPED.search(line)] or named
    hints = [f"the full output is in {job.log}"]

    def failure(sentence: str) -> BuildError:
        return BuildError(sentence, stage="compile", log=job.log, hints=hints)

    if status < 0:
        return failure(f"the compile was killed by signal {-status}")
    if was_killed(lines):
        fewer = max(1, job.jobs // 2)
        hints[:0] = [
            f"run the command again with `--jobs {fewer}`, which needs less memory",
            "raise `memory_per_job` in the recipe to limit the jobs of every run",
        ]
        return failure("a compiler was killed, probably because memory ran out")
    if any("Python.h" in line for line in errors):
        hints.insert(0, header_hint(job.toolchain.python))
        return failure("Python's headers (Python.h) are missing")
    if disk_is_full(lines):
        hints.insert(0, DISK_HINT)
        return failure("the disk is full; unfinished files were deleted")
    first = errors[0].replace(f"{source}/", "")[:300] if errors else f"the build exited with status {status}"
    if found := _NO_MODULE.search(first):
        hints.insert(0, f"add `{found[1]}` to `build_requires` in the recipe: the build needs this module")
    if _UNREACHABLE.search(first):
        hints.insert(0, "the source downloads files during its build: run the build where this server can be reached")
    elif first.startswith("CMake Error"):
        hints.insert(
            0,
            "if CMake does not find a library or program, install it; for a Python package, add it to `build_requires`",
        )
    count = len({line for line in named if _AT_A_PLACE.search(line)})  # nvcc repeats an error for each architecture
    return failure(f"{first} ({count} errors in all)" if count > 1 else first)


def _with_cmake_messages(lines: Sequence[str]) -> Iterator[str]:
    """The lines; an error of CMake in one line with the first line of its message."""
    for at, line in enumerate(lines):
        below = next((text for text in lines[at + 1 : at + 3] if text.strip()), "")
        yield f"{line.rstrip()} {below.strip()}" if _CMAKE.match(line) and below.startswith("  ") else line


def was_killed(lines: Iterable[str]) -> bool:
    """Whether SIGKILL terminated a program, as reported by a shell, gcc, nvcc, setuptools or a container's 137."""
    return any(_KILLED.search(line) for line in lines)


def disk_is_full(lines: Iterable[str]) -> bool:
    """Whether a program reported a full disk or a full quota."""
    return any("No space left on device" in line or "Disk quota exceeded" in line for line in lines)
