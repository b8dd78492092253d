"""What is printed: on stderr lines, warnings, and errors with hints; on stdout the results of commands alone."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from builder.errors import BuildError, BuildfarmError, Code, UsageError, mask_credentials
from builder.untrusted import visible, visible_with_colours

_printed: list[bool] = []


class PlainConsole(Console):
    """A console that prints texts without secrets and without control characters other than its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            part if part.control else Segment(visible(mask_credentials(part.text)), part.style) for part in buffer
        )


#: stderr. Text such as `:x:` is printed as it is.
console = PlainConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


@dataclass
class Verbosity:
    """How much is printed to stderr."""

    #: Only warnings and errors.
    quiet: bool = False
    #: Also every line that the programs of a build print.
    verbose: bool = False


#: The verbosity of this process; the command line sets it.
verbosity = Verbosity()


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Set the verbosity of this process; raises UsageError for both at once."""
    if quiet and verbose:
        raise UsageError("cannot be combined with --verbose", Code.COMMAND_LINE_INVALID, where="--quiet")
    verbosity.quiet, verbosity.verbose = quiet, verbose


def print_line(text: str) -> None:
    """Print one line, unless only warnings and errors are wanted."""
    if not verbosity.quiet:
        console.print(escape(text))


def print_warning(text: str) -> None:
    """Print one line with the prefix `warning:`."""
    console.print(f"[yellow]warning:[/] {escape(text)}")


def print_error(error: BuildfarmError, *, who: Sequence[str] = ()) -> None:
    """Print an error with the line of the source, and its hints; `who` are the builds that it stopped."""
    about = "" if not who else f"{who[0]}: " if len(who) == 1 else f"{who[0]} and {len(who) - 1} more: "
    console.print(f"[red]error[/]{escape(f'[{error.code}]')}[red]:[/] {escape(about)}{escape(str(error))}")
    for line in error.excerpt if isinstance(error, BuildError) else ():
        console.print(f"  {escape(line)}")
    for hint in error.hints:
        console.print(f"  [cyan]hint:[/] {escape(hint)}")


def data_printed() -> bool:
    """Whether this process has printed data."""
    return bool(_printed)


def print_result(text: str, data: object, *, as_json: bool) -> None:
    """Print the result of a command to stdout: its text, or data for programs."""
    print_data(json_text(data) if as_json else text)


def json_text(data: object) -> str:
    """The data as JSON; an object of a class of buildfarm is what its `to_json` returns, or its text."""

    def plain(value: Any) -> Any:  # noqa: ANN401
        return value.to_json() if hasattr(value, "to_json") else str(value)

    return f"{json.dumps(data, indent=1, default=plain)}\n"


def print_data(text: str) -> None:
    """Print to stdout, without secrets in URLs and without control characters other than colours.

    A reader that closes the pipe early (`| head`) does not change the exit code. Raises BuildfarmError if there is data
    and the shell has closed stdout (`>&-`): nobody gets the data then.
    """
    _printed.append(True)
    if sys.stdout is None:
        if not text:
            return
        hint = "redirect stdout to a file, or to /dev/null if you do not need the output"
        raise BuildfarmError(
            "it is closed, so the result cannot be printed", Code.PATH_NOT_USABLE, where="stdout", hints=[hint]
        )
    try:
        text = mask_credentials(text)
        typer.echo(visible_with_colours(text) if sys.stdout.isatty() else visible(text), nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards what is still buffered
