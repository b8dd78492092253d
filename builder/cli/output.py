"""Prints data to stdout; messages go to stderr through `builder.log`."""

from __future__ import annotations

import os
import sys

import typer

from builder.masking import mask_credentials
from builder.untrusted import visible, visible_with_colours

_printed: list[bool] = []


def data_printed() -> bool:
    """Whether this process has printed data."""
    return bool(_printed)


def print_data(text: str) -> None:
    """Print to stdout, without secrets in URLs and without control characters other than colours.

    A reader that closes the pipe early (`| head`) does not change the exit code.
    """
    _printed.append(True)
    if sys.stdout is None:  # the shell has closed it
        return
    try:
        text = mask_credentials(text)
        typer.echo(visible_with_colours(text) if sys.stdout.isatty() else visible(text), nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards what is still buffered
