"""Messages on stderr: lines, warnings, and errors with hints. stdout is for data only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from builder.errors import BuildError, BuildfarmError, Code, UsageError
from builder.masking import mask_credentials
from builder.untrusted import visible


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
