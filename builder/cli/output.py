"""Prints data to stdout; messages go to stderr through `builder.log`."""

import json
import os
import sys
from typing import Any

import typer

from builder.errors import BuildfarmError, Code
from builder.masking import mask_credentials
from builder.untrusted import visible, visible_with_colours

_printed: list[bool] = []


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
