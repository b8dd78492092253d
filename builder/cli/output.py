"""Prints data to stdout; messages go to stderr through `builder.log`."""

from __future__ import annotations

import os
import sys

import typer

_printed: list[bool] = []


def data_printed() -> bool:
    """Whether this process has printed data."""
    return bool(_printed)


def print_data(text: str) -> None:
    """Print to stdout. A reader that closes the pipe early (`| head`) does not change the exit code."""
    _printed.append(True)
    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards what is still buffered
