"""Reads cibuildwheel's output: the stages while it runs, and the error when it fails."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from builder.diagnosis.setup_script import read_setup_script
from builder.errors import DISK_HINT, BuildError, MissingToolError
from builder.process import complete_lines, text_since
from builder.progress.display import repeated
from builder.wheels.cibuildwheel.config import SOURCE
from builder.wheels.failures import (
    answered_identity,
    compile_failure,
    disk_is_full,
    left_out_extensions,
    no_library_hints,
    other_identity,
    was_killed,
)
from builder.wheels.job import CompileJob
from builder.wheels.repair.repair import NO_LIBRARY

#: Makes cibuildwheel begin each step with a line that compilers do not print.
LOG_VARIABLES = {"CIBW_LOG_FOLD_MODE": "github"}


#: Lines that begin a step of cibuildwheel (its logger.py and platforms/linux.py), each with its stage.
_STEPS = {
    "::group::Starting container image": "environment",
    "::group::Setting up build environment...": "environment",
    "::group::Running before_build...": "environment",
    "::group::Building wheel...": "compile",
    "::group::Repairing wheel...": "repair",
    "::group::Copying wheels back to host...": "copy",
}

#: Interval between two looks at the log and for the container, seconds.
_POLL_INTERVAL = 0.1

#: Exit statuses of cibuildwheel 4.3 with a meaning that its output does not have (its errors.py).
_NOTHING_TO_DO, _PURE_WHEEL = 3, 5

#: Start of the line in which cibuildwheel reports its own error.
_OWN_ERROR = "::error::cibuildwheel: "

_ERROR_LINE = re.compile(
    r"(?:.*\b(?:error|cause|fatal)(?: response from daemon)?:|ERROR\b|E:(?=\s)|\u00d7|\u2570\u2500\u25b6):?\s*(.+)",
    re.IGNORECASE,
)
_SHELL_ERROR = re.compile(r".*(?:not found|Permission denied|No such file or directory)$")
#: What auditwheel says of a wheel with the tag of a platform and without a library.
_NO_ELF = "no ELF executable or shared library"
_ENDED_INSIDE = re.compile(r"the container shell has exited|BrokenPipeError")


@contextmanager
def followed(log: Path, start: int, stage: Callable[[str], None], open_root: Callable[[], bool]) -> Iterator[None]:
    """Follow cibuildwheel while the body runs: call `stage` with each new stage in its log, and open `/` once.

    `start` is the size of the log before. `open_root` is called until it returns True.
    """
    current, offset, opened = "environment", start, False

    def follow(*, last: bool = False) -> None:
        nonlocal current, offset, opened
        with suppress(MissingToolError):  # the build reports an engine that does not answer
            opened = opened or last or open_root()
        lines, offset = complete_lines(log, offset)
        for reached in filter(None, map(_stage_of, lines)):
            if reached != current:
                current = reached
                stage(current)

    try:
        with repeated(follow, _POLL_INTERVAL):
            yield
    finally:
        follow(last=True)  # for steps since the previous read


def last_error(lines: Sequence[str]) -> str:
    """The last error message; otherwise a shell's message, cibuildwheel's own, or the last line."""
    stripped = [line.strip() for line in lines]
    others = [line for line in stripped if line and not line.startswith(("::", "+ "))]
    errors = [found[1] for line in others if (found := _ERROR_LINE.match(line))]
    errors = errors or [line for line in others if _SHELL_ERROR.match(line)]
    errors = errors or [line.removeprefix(_OWN_ERROR) for line in stripped if line.startswith(_OWN_ERROR)]
    return (errors or others or ["no reason given"])[-1][:300]


def run_error(job: CompileJob, start: int, status: int) -> BuildError:
    """The error for a failed run of cibuildwheel, with the stage that failed.

    `status` is the exit status, or the negative number of the signal that ended cibuildwheel.
    """
    stage, lines = "environment", text_since(job.log, start).splitlines()
    for number in range(len(lines) - 1, -1, -1):
        if reached := _stage_of(lines[number]):
            stage, lines = reached, lines[number:]
            break
    hints = [f"the full output is in {job.log}"]

    def error(sentence: str, *ways_out: str, failed: str = stage) -> BuildError:
        return BuildError(sentence, stage=failed, log=job.log, hints=[*ways_out, *hints])

    if status < 0:
        return error(f"cibuildwheel was killed by signal {-status}")
    if any(_ENDED_INSIDE.search(line) for line in lines):
        return error(
            f"the container ended during the {stage} stage",
            "the engine may have been stopped, or the kernel may have killed the container because memory ran out",
        )
    if status == _NOTHING_TO_DO:
        python = job.toolchain.python
        way_out = "set `python` in the recipe to the versions that the source's `requires-python` allows"
        return error(f"the source does not support Python {python}", way_out, failed="environment")
    if status == _PURE_WHEEL or any(_NO_ELF in line for line in lines):
        left_out = left_out_extensions(job, text_since(job.log, start).splitlines())
        script = read_setup_script(job.source)
        return error(NO_LIBRARY, *left_out, *no_library_hints(script, job.recipe), failed="compile")
    answer = answered_identity("\n".join(lines)) if stage == "environment" else None
    if answer and (differs := other_identity(job, *answer)):
        return differs
    if stage == "compile":
        return compile_failure(job, status, SOURCE, [line.removeprefix("::error::") for line in lines], tree=job.tree)
    if disk_is_full(lines):
        return error(f"the disk is full ({stage} stage); unfinished files were deleted", DISK_HINT)
    if was_killed(lines):
        return error(f"a program of the {stage} stage was killed, probably because memory ran out")
    return error(f"the {stage} stage failed: {last_error(lines)}")


def _stage_of(line: str) -> str:
    """The stage that a line begins, or empty."""
    return next((stage for begin, stage in _STEPS.items() if line.startswith(begin)), "")
