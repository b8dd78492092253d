"""Every failure a user can meet: one sentence, the thing it is about, hints, and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    """What the process answers; scripts may rely on these."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING_SELECTED = 3
    TOOL_MISSING = 4
    INTERRUPTED = 130


class FarmError(Exception):
    """A failure with a sentence for a person; a traceback is only for our own bugs.

    Attributes:
        sentence: what is wrong, one sentence.
        where: the file and key (or package, or command) it is about, if any.
        hints: what to do next, one way out each.

    """

    exit_code: Exit = Exit.FAILED

    def __init__(self, sentence: str, *, where: str = "", hints: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.where = where
        self.hints = tuple(hints)

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence


class UsageError(FarmError):
    """Configuration, recipe or command line is wrong: nothing was started."""

    exit_code = Exit.USAGE


class NothingSelectedError(FarmError):
    """The selection and the matrix have no cell in common."""

    exit_code = Exit.NOTHING_SELECTED


class MissingToolError(FarmError):
    """A tool, toolkit, engine, Python or download that the work needs is not to be had."""

    exit_code = Exit.TOOL_MISSING


class BuildError(FarmError):
    """One build failed at one stage; the others go on.

    Attributes:
        stage: the step that failed (`fetch`, `environment`, `compile`, `repair`, `verify`; in a container also
            `before-all`, `before-build`, `test`, `copy`).
        log: the file that holds the whole output, if there is one.

    """

    def __init__(
        self,
        sentence: str,
        *,
        stage: str,
        log: Path | None = None,
        where: str = "",
        hints: Sequence[str] = (),
    ) -> None:
        super().__init__(sentence, where=where, hints=hints)
        self.stage = stage
        self.log = log


class PreflightError(FarmError):
    """Everything that stops the run, found before anything was started.

    Attributes:
        problems: each with its own sentence and hints; the gravest decides the exit code.

    """

    def __init__(self, problems: Sequence[FarmError]) -> None:
        super().__init__(f"{len(problems)} problems, and nothing was started")
        self.problems = tuple(problems)
        self.exit_code = max((problem.exit_code for problem in problems), default=Exit.FAILED)
