"""The errors that users see: a sentence, what it is about, hints, and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from builder.untrusted.masking import mask_credentials


class Exit(IntEnum):
    """Exit codes of the command `buildfarm`. They do not change, so scripts may rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING_SELECTED = 3
    TOOL_MISSING = 4
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """The meaning of the code in one sentence; the documentation is generated from it."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: (
        'All builds succeeded and no check failed. Checks may be "not run", for example the GPU checks on a machine'
        " without a GPU."
    ),
    Exit.FAILED: (
        "A build failed, a check failed, a rebuilt wheel differs, or `doctor` found a fault. Also: the disk is full, or"
        " a file cannot be read or written."
    ),
    Exit.USAGE: (
        "The command line, matrix.yaml, a recipe or the machine does not allow the run. No build was started, but"
        " `build SOURCE` may have written a recipe."
    ),
    Exit.NOTHING_SELECTED: "The selection contains no cell that can be built or tested.",
    Exit.TOOL_MISSING: (
        "A tool, a toolkit, a container engine, a Python or a download is missing. Also: an input of `rebuild` differs"
        " from the wheel's record, or no check of `smoke` could run."
    ),
    Exit.INTERRUPTED: "The run was interrupted; finished builds and proofs are kept.",
}


#: What to do when the disk is full.
DISK_HINT = "`buildfarm store du` shows what uses the disk"


class BuildfarmError(Exception):
    """An expected error, printed without a traceback. A traceback means a bug of buildfarm.

    Secrets in its texts are masked.

    Attributes:
        sentence: what is wrong, one sentence.
        where: the file and key, the package or the command that the error is about; may be empty.
        hints: what to do next, one solution each.

    """

    exit_code: Exit = Exit.FAILED

    def __init__(self, sentence: str, *, where: str = "", hints: Sequence[str] = ()) -> None:
        super().__init__(mask_credentials(sentence))
        self.sentence = mask_credentials(sentence)
        self.where = mask_credentials(where)
        self.hints = tuple(map(mask_credentials, hints))

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence


class UsageError(BuildfarmError):
    """The command line, matrix.yaml, a recipe or the machine does not allow the run; nothing was started."""

    exit_code = Exit.USAGE


class NothingSelectedError(BuildfarmError):
    """The selection contains no cell that can be built or tested."""

    exit_code = Exit.NOTHING_SELECTED


class MissingToolError(BuildfarmError):
    """A tool, a toolkit, a container engine, a Python or a download is missing."""

    exit_code = Exit.TOOL_MISSING


class BuildError(BuildfarmError):
    """One build failed at one stage; the other builds continue.

    Attributes:
        stage: the stage that failed: `fetch`, `environment`, `compile`, `repair` or `verify`; in a container also
            `before-all`, `before-build`, `test` or `copy`.
        log: file with the complete output, or None.
        excerpt: lines that show the place of the error in the source, or empty.

    """

    def __init__(
        self,
        sentence: str,
        *,
        stage: str,
        log: Path | None = None,
        where: str = "",
        hints: Sequence[str] = (),
        excerpt: Sequence[str] = (),
    ) -> None:
        super().__init__(sentence, where=where, hints=hints)
        self.stage = stage
        self.log = log
        self.excerpt = tuple(map(mask_credentials, excerpt))


class PreflightError(BuildfarmError):
    """Several errors that were found before anything was started.

    Attributes:
        problems: the errors; the highest exit code among them is the exit code of all.

    """

    def __init__(self, problems: Sequence[BuildfarmError]) -> None:
        super().__init__(f"{len(problems)} problems were found; nothing was started")
        self.problems = tuple(problems)
        self.exit_code = max((problem.exit_code for problem in problems), default=Exit.FAILED)


def raise_problems(problems: Sequence[BuildfarmError]) -> None:
    """Raise the only problem, or all of them as a PreflightError; return if there is none."""
    if problems:
        raise problems[0] if len(problems) == 1 else PreflightError(problems)
