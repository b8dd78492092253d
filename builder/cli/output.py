"""Prints data to stdout; messages go to stderr through `builder.log`."""

from __future__ import annotations

import json
import os
import sys

import typer

from builder.errors import BuildfarmError, Code
from builder.masking import mask_credentials
from builder.untrusted import visible, visible_with_colours

_printed: list[bool] = []


def data_printed() -> bool:
    """Whether this process has printed data."""
    return bool(_printed)


def print_json(data: object) -> None:
    """Print data for programs to stdout."""
    print_data(json.dumps(data, indent=1) + "\n")


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
