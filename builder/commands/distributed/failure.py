"""An error of a worker as data, and the error again on the client."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from builder.errors import DISK_HINT, BuildError, BuildfarmError, MissingToolError, PreflightError, UsageError


@dataclass(frozen=True)
class Failure:
    """An error as data."""

    kind: str
    sentence: str
    where: str = ""
    hints: tuple[str, ...] = ()
    stage: str = ""
    excerpt: tuple[str, ...] = ()
    #: Whether the worker is the reason, and not the build: another worker may succeed.
    machine: bool = False
    #: The path of the log on the worker, as the hints name it.
    log: str = ""

    @classmethod
    def of(cls, error: BuildfarmError, *, machine: bool = False) -> Failure:
        """The data of an error; of several errors, one sentence with all of them."""
        if isinstance(error, PreflightError):
            hints = tuple(dict.fromkeys(hint for problem in error.problems for hint in problem.hints))
            return cls("MissingToolError", "; ".join(map(str, error.problems)), hints=hints, machine=machine)
        if isinstance(error, BuildError):
            told = (error.sentence, error.where, error.hints, error.stage, error.excerpt)
            return cls("BuildError", *told, machine=machine, log=str(error.log or ""))
        kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
        return cls(kind, error.sentence, error.where, error.hints, machine=machine)

    @classmethod
    def of_os_error(cls, error: OSError) -> Failure:
        """The data of what the system refused on a worker."""
        place = str(error.filename or "")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cls("BuildfarmError", "the disk of the worker is full", place, (DISK_HINT,), machine=True)
        return cls("BuildfarmError", str(error.strerror or error), place, machine=True)

    def error(self, log: Path | None = None) -> BuildfarmError:
        """The error again; `log` is the client's copy of the log."""
        if self.kind == "BuildError":
            hints = [hint.replace(self.log, str(log)) if self.log and log else hint for hint in self.hints]
            return BuildError(
                self.sentence, stage=self.stage, log=log, where=self.where, hints=hints, excerpt=self.excerpt
            )
        return _KINDS[self.kind](self.sentence, where=self.where, hints=self.hints)


_KINDS: dict[str, type[BuildfarmError]] = {
    "MissingToolError": MissingToolError,
    "UsageError": UsageError,
    "BuildfarmError": BuildfarmError,
}
