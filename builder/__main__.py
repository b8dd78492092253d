"""The entry point: run the command line, and turn every error into a message and an exit code."""

from __future__ import annotations

import errno
import json
import math
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from builder.cli.app import app
from builder.cli.output import data_printed, print_data
from builder.errors import DISK_HINT, BuildfarmError, Exit, PreflightError, UsageError
from builder.log import print_error, print_line
from builder.process import kill_all

#: Time in which further signals do not interrupt the end of a run.
SECONDS_TO_STOP = 5.0


def main() -> None:
    """Run the command line and exit. SIGTERM and SIGHUP do what Ctrl-C does: compilers and containers end too."""
    handle_signals()
    sys.exit(_run())


def handle_signals() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, and SIGINT if it is not ignored.

    `timeout` sends a signal twice at once, and a person may press Ctrl-C twice. A second signal within
    SECONDS_TO_STOP is ignored: it would interrupt the code that ends the compilers.
    """
    first = -math.inf

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if time.monotonic() - first > SECONDS_TO_STOP:
            first = time.monotonic()
            raise KeyboardInterrupt

    # A shell that starts a program in the background makes it ignore SIGINT.
    sigint = (signal.SIGINT,) if signal.getsignal(signal.SIGINT) is signal.default_int_handler else ()
    for number in (signal.SIGTERM, signal.SIGHUP, *sigint):
        signal.signal(number, interrupt)


def _run() -> int:
    try:
        app()
    except PreflightError as error:
        _report(error.problems)
        print_line(f"{error}.")
        return error.exit_code
    except BuildfarmError as error:
        _report([error])
        return error.exit_code
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = error.filename or "while writing"
            _report([BuildfarmError(f"the disk is full ({place}); unfinished files were deleted", hints=[DISK_HINT])])
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            _report([BuildfarmError(str(error.strerror), where=str(error.filename))])
        else:
            raise
        return Exit.FAILED
    except SystemExit as exited:
        if exited.code == Exit.INTERRUPTED:  # what typer makes of Ctrl-C
            kill_all()
            print_line("interrupted; finished builds are kept, and the next run uses them.")
        elif exited.code == Exit.USAGE:  # typer has printed what is wrong with the command line
            _print_json([UsageError("the command line is not valid; stderr has the reason")])
        return exited.code if isinstance(exited.code, int) else Exit.FAILED
    return Exit.OK


def _report(errors: Sequence[BuildfarmError]) -> None:
    for error in errors:
        print_error(error)
    _print_json(errors)


def _print_json(errors: Sequence[BuildfarmError]) -> None:
    """With --json, print errors to stdout, unless the command has already printed its data."""
    if "--json" in sys.argv[1:] and not data_printed():
        entries = [{"error": error.sentence, "where": error.where, "hints": list(error.hints)} for error in errors]
        print_data(json.dumps({"errors": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
