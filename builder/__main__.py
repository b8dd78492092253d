"""Where a run ends: every failure becomes a sentence and an exit code."""

from __future__ import annotations

import errno
import signal
import sys

from builder.cli import app
from builder.errors import Exit, FarmError, PreflightError
from builder.log import complain, say
from builder.process import end_all


def main() -> None:
    """Run the command line and exit. To be told to end is to be interrupted: compilers and containers end too."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        # Not by way of SIGINT: a shell that put this run into the background had it ignored.
        signal.signal(ending, signal.default_int_handler)
    sys.exit(_run())


def _run() -> int:
    try:
        app()
    except PreflightError as error:
        for problem in error.problems:
            complain(problem)
        say(f"{error}.")
        return error.exit_code
    except FarmError as error:
        complain(error)
        return error.exit_code
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            say(f"error: the disk is full ({error.filename or 'while writing'}); nothing half-made was kept.")
            return Exit.FAILED
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise
        say(f"error: {error.filename}: {error.strerror}")
        return Exit.FAILED
    except SystemExit as ending:
        if ending.code == Exit.INTERRUPTED:  # typer's word for Ctrl-C
            end_all()
            say("interrupted; what was finished is kept, the next run goes on from there.")
        return ending.code if isinstance(ending.code, int) else Exit.FAILED
    return Exit.OK


if __name__ == "__main__":
    main()
