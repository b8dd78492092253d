"""What cibuildwheel prints and how it ends, in the farm's words: stages while it runs, one sentence when it fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError
from builder.wheels.build import Job
from builder.wheels.local import compile_failure, disk_full, killed
from builder.wheels.settings import BEFORE_BUILD_FOLD, TEST_FOLD

#: What cibuildwheel is told: to begin each step by a line that no compiler prints by chance.
VARIABLES = {"CIBW_LOG_FOLD_MODE": "github"}


@dataclass(frozen=True)
class _Step:
    """A step of cibuildwheel: the farm's name for its stage, what failed when it fails, and whose it was."""

    stage: str
    failed: str
    skip: str = ""  # the word of `cibuildwheel_skip` that leaves it out


_READY = _Step("environment", "the container did not become ready")
_OWN_TESTS = "the source's own tests of its wheel"

#: The lines that begin a step: cibuildwheel's folds (its logger.py, platforms/linux.py) and the farm's own.
_STEPS = {
    "::group::Starting container image": _READY,
    "::group::Running before_all...": _Step("before-all", "the source's own before-all failed", "before-all"),
    "::group::Setting up build environment...": _READY,
    "::group::Running before_build...": _READY,
    BEFORE_BUILD_FOLD: _Step("before-build", "the source's own before-build failed", "before-build"),
    "::group::Building wheel...": _Step("compile", "the build failed"),
    "::group::Repairing wheel...": _Step("repair", "auditwheel refused the wheel"),
    "::group::Testing wheel...": _Step("test", f"no environment could be made for {_OWN_TESTS}", "test"),
    TEST_FOLD: _Step("test", f"{_OWN_TESTS} failed", "test"),
    "::group::Copying wheels back to host...": _Step("copy", "the wheel could not be taken out of the container"),
}

#: cibuildwheel 4.3's exit statuses that say more than its log (its errors.py); 1 is any command that failed.
_STATUSES = {
    2: ("environment", "cibuildwheel does not take its settings"),
    4: ("environment", "cibuildwheel no longer takes its settings"),
    6: ("repair", "the wheel was made twice in one run"),
    8: ("repair", "the repair did not leave exactly one wheel"),
    9: ("repair", "the audit of the wheel failed"),
    10: ("compile", "the front end ended well and made no wheel"),
}
_NOTHING_TO_DO, _PURE_WHEEL, _OLD_ENGINE = 3, 5, 7

#: How cibuildwheel begins the line that says why it ends.
_OWN_ERROR = "::error::cibuildwheel: "

_COMPLAINT = re.compile(
    r"(?:.*\b(?:error|cause|fatal)(?: response from daemon)?:|ERROR\b|E:(?=\s)|\u00d7|\u2570\u2500\u25b6):?\s*(.+)",
    re.IGNORECASE,
)
_SHELL_COMPLAINT = re.compile(r".*(?:not found|Permission denied|No such file or directory)$")
_PACKAGE_MANAGER = re.compile(r".*\b(yum|dnf|microdnf|apt-get|apt|apk|zypper|pacman): (?:command )?not found$")
_FAILED_TEST = re.compile(r"(?:FAILED|FAIL:|ERROR:?) ([^(\s].*)")
_EXCEPTION = re.compile(r"(?:E\s+)?([\w.]*(?:Error|Exception|Exit)\b(?:: .+)?)$")
_ENDED_INSIDE = re.compile(r"the container shell has exited|BrokenPipeError")


@contextmanager
def announced(log: Path, start: int, stage: Callable[[str], None]) -> Iterator[None]:
    """Tell of each stage as cibuildwheel's log reaches it, to its end; `start` is the log's size before the run."""
    ended = threading.Event()

    def follow() -> None:
        told, offset = _READY.stage, start
        last = False
        while not last:
            last = ended.wait(0.5)  # one more look when it is over: the last steps may have come since
            lines, offset = _whole_lines(log, offset)
            for now in [step.stage for line in lines if (step := _step_of(line))]:
                if now != told:
                    told = now
                    stage(now)

    follower = threading.Thread(target=follow, name="stages", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def _whole_lines(log: Path, start: int) -> tuple[list[str], int]:
    """The lines that are whole after a log's first `start` bytes, and where they end."""
    if not log.exists():
        return [], start
    with log.open("rb") as stream:
        stream.seek(start)
        text, newline, _ = stream.read().rpartition(b"\n")
    return text.decode(errors="replace").splitlines(), start + len(text) + len(newline)


def said_since(log: Path, start: int) -> list[str]:
    """The lines of a log after its first `start` bytes."""
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read().decode(errors="replace").splitlines()


def last_error(lines: Sequence[str]) -> str:
    """The last line that complains; else a shell's complaint, then cibuildwheel's own, then the last there is."""
    spoken = [line.strip() for line in lines]
    others = [line for line in spoken if line and not line.startswith(("::", "+ "))]
    own = [line.removeprefix(_OWN_ERROR) for line in spoken if line.startswith(_OWN_ERROR)]
    if said := [found[1] for line in others if (found := _COMPLAINT.match(line))]:
        return said[-1][:300]
    if said := [line for line in others if _SHELL_COMPLAINT.match(line)]:
        return said[-1][:300]
    if own:
        return own[-1][:300]
    return others[-1][:300] if others else "it gave no reason"


def failure(job: Job, start: int, status: int, *, image: str = "") -> FarmError:
    """A failed run of cibuildwheel as a sentence, with the stage it failed in.

    `status` is its exit status, or negative the signal that ended it; `image` names what it ran in. MissingToolError
    where the engine is too old for it, else BuildError.
    """
    step, lines = _last_step(said_since(job.log, start))
    hints = [f"the whole output is in {job.log}"]

    def error(sentence: str, *ways_out: str, stage: str = "") -> BuildError:
        return BuildError(sentence, stage=stage or step.stage, log=job.log, hints=[*ways_out, *hints])

    if status < 0:
        return error(f"cibuildwheel was ended by signal {-status}")
    if any(_ENDED_INSIDE.search(line) for line in lines):
        return error(
            f"the container ended in the middle of the {step.stage} stage",
            "the engine may have been stopped, or the kernel may have killed the container for memory",
        )
    if status == _OLD_ENGINE:
        return MissingToolError(f"cibuildwheel cannot use the container engine: {last_error(lines)}", hints=hints)
    if status == _NOTHING_TO_DO:
        python = job.toolchain.python
        wanted = "`python` in the recipe says which Pythons it supports; its own `requires-python` leaves this one out"
        return error(f"the source takes no Python {python}", wanted, stage="environment")
    if status == _PURE_WHEEL:
        way_out = "its setup may look for a GPU: try `assume_cuda: true`, or FORCE_CUDA in `env`"
        return error("the build made a wheel with no library in it", way_out, stage="compile")
    if status in _STATUSES:
        stage, sentence = _STATUSES[status]
        return error(f"{sentence}: {last_error(lines)}", stage=stage)
    if step.stage == "compile":
        return compile_failure(job, status, [line.removeprefix("::error::") for line in lines])
    if disk_full(lines):
        return error(f"the disk is full (at the {step.stage} stage); nothing half-made was kept")
    if killed(lines):
        return error(f"a program of the {step.stage} stage was killed, most likely for memory")
    return error(f"{step.failed}: {_reason(step, lines)}", *_ways_out(step, lines, image))


def _last_step(lines: Sequence[str]) -> tuple[_Step, Sequence[str]]:
    """The step cibuildwheel is in, and the lines it has said there."""
    for number in range(len(lines) - 1, -1, -1):
        if step := _step_of(lines[number]):
            return step, lines[number:]
    return _READY, lines


def _step_of(line: str) -> _Step | None:
    """The step that a line begins."""
    return next((step for begin, step in _STEPS.items() if line.startswith(begin)), None)


def _reason(step: _Step, lines: Sequence[str]) -> str:
    """Why a step failed: of tests the first that failed, or the exception they ended by."""
    if step is _STEPS[TEST_FOLD]:
        spoken = [line.strip() for line in lines]
        for pattern, which in ((_FAILED_TEST, 0), (_EXCEPTION, -1)):
            if said := [found[1] for line in spoken if (found := pattern.match(line))]:
                return said[which][:300]
    return last_error(lines)


def _ways_out(step: _Step, lines: Sequence[str], image: str) -> list[str]:
    if not step.skip:
        return []
    ways = [f"`cibuildwheel_skip: [{step.skip}]` in the recipe leaves it out"]
    for line in lines:
        if found := _PACKAGE_MANAGER.match(line.strip()):
            ways.insert(0, f"it is written for another distribution: there is no {found[1]} in {image or 'the image'}")
            ways.append("what it installs can be put into an image of your own, named under `images:` in matrix.yaml")
            break
    return ways
