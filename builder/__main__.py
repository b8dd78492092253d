"""The entry point: run the command line, and turn every error into a message and an exit code."""

import errno
import gc
import sys
from collections.abc import Sequence
from typing import Any

import typer

from builder.cli.app import app
from builder.errors import DISK_HINT, BuildfarmError, Code, Exit, PreflightError, UsageError
from builder.log import data_printed, json_text, print_data, print_error, print_line
from builder.process import handle_signals, kill_all, was_interrupted

#: What typer raises for a wrong command line. Older releases of typer take the class from the package `click`.
_WrongCommandLine: Any = typer.BadParameter.__base__
#: What the system refuses because of a path or a right, not because of a bug.
_REFUSED = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
}


def main() -> None:
    """Run the command line and exit. SIGTERM and SIGHUP do what Ctrl-C does: compilers and containers end too."""
    gc.set_threshold(50_000)  # the default of 700 costs a short command a tenth of its time
    handle_signals()
    sys.exit(run_command())


def run_command() -> int:
    """Run the command line of `sys.argv`; print expected errors and return the exit code."""
    try:
        exit_code = _run_app()
    except _WrongCommandLine as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without its command
            error.show()
            return Exit.USAGE
        _report([_command_line_error(error)])
        return Exit.USAGE
    except PreflightError as error:
        _report(error.problems)
        print_line(f"{error}.")
        return error.exit_code
    except BuildfarmError as error:
        _report([error])
        return error.exit_code
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _report([_disk_full(error)])
        elif error.errno in _REFUSED:
            _report([_refused(error)])
        else:
            raise
        return Exit.FAILED
    except SystemExit as exited:
        exit_code = exited.code
    if exit_code == Exit.INTERRUPTED:  # what typer makes of Ctrl-C
        kill_all()
        print_line("interrupted; finished builds are kept, and the next run uses them.")
    return exit_code if isinstance(exit_code, int) else Exit.OK if exit_code is None else Exit.FAILED


def _run_app() -> Any:  # noqa: ANN401 (what a command returns)
    """Run the command; after a signal, an error is its consequence: a lock that is not taken, a program that ended."""
    try:
        return app(prog_name="buildfarm", standalone_mode=False)
    except Exception:
        if was_interrupted():
            return Exit.INTERRUPTED
        raise


def _command_line_error(error: Any) -> UsageError:  # noqa: ANN401 (a class of typer or of click)
    """Return what typer says about the command line as an error of buildfarm."""
    sentence = " ".join(error.format_message().removesuffix(".").replace("Value error, ", "").split())
    command = error.ctx.command_path if error.ctx else " ".join(["buildfarm", *sys.argv[1:2]])
    hints = [f"`{command} --help` lists the commands, arguments and options"]
    if type(error).__name__ == "MissingParameter" and error.param and error.ctx:
        # The examples of the help, each on a line: the first one that gives what is missing.
        examples = [line for line in (error.ctx.command.epilog or "").split("\n\n") if line.startswith("buildfarm ")]
        fitting = [line for line in examples if not set(line.split()).isdisjoint(error.param.opts)]
        hints[:0] = [f"for example: `{line}`" for line in [*fitting, *examples][:1]]
    return UsageError(sentence[:1].lower() + sentence[1:], Code.COMMAND_LINE_INVALID, hints=hints)


def _disk_full(error: OSError) -> BuildfarmError:
    """Return a full disk as an error of buildfarm."""
    place = error.filename2 or error.filename or "while writing"  # of a copy, the second one is the file written
    hints = [DISK_HINT, f"or delete files on the disk of {place}"] if error.filename else [DISK_HINT]
    return BuildfarmError(f"the disk is full ({place}); unfinished files were deleted", Code.DISK_FULL, hints=hints)


def _refused(error: OSError) -> BuildfarmError:
    """Return what the system refuses as an error of buildfarm; without a path, the current folder may be gone."""
    where = "the current folder" if error.filename is None else str(error.filename)[:200]
    return BuildfarmError(str(error.strerror), Code.PATH_NOT_USABLE, where=where)


def _report(errors: Sequence[BuildfarmError]) -> None:
    """Print errors to stderr; with --json also to stdout, unless the command has already printed its data."""
    for error in errors:
        print_error(error)
    if "--json" in sys.argv[1:] and not data_printed() and sys.stdout is not None:
        print_data(json_text({"errors": errors}))


if __name__ == "__main__":
    main()
