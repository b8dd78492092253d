"""Text for stdout: plain in a file or a pipe, with colours and the terminal's width in a terminal."""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence

from rich.markup import escape

from builder.gate.report import KINDS, Causes
from builder.log import PlainConsole, verbosity

#: Columns of the text where stdout is not a terminal: enough for the longest wheel name and its figures.
PLAIN_WIDTH = 200
_COLOURS = {"passed": "green", "remark": "yellow", "FAILED": "red"}


def output_width() -> int:
    """How many columns a line on stdout may have. Without a terminal, COLUMNS counts if it is set."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if known else PLAIN_WIDTH


def cause_lines(causes: Causes, kinds: Sequence[str] = KINDS) -> list[str]:
    """The lines of causes as rich markup; with `--verbose` each of them, and nothing is shortened."""
    return [marked(line) for line in causes.lines(output_width(), every=verbosity.verbose, kinds=kinds)]


def hint_lines(hints: Iterable[str]) -> list[str]:
    """The hints as rich markup, each once."""
    return [f"  [cyan]hint:[/] {escape(hint)}" for hint in dict.fromkeys(hints)]


def marked(line: str) -> str:
    """A line that begins with a verdict, as rich markup with a coloured verdict."""
    verdict = line.strip().partition("  ")[0]
    colour = _COLOURS.get(verdict)
    return escape(line).replace(verdict, f"[{colour}]{verdict}[/]", 1) if colour else escape(line)


def coloured_counts(counts: str) -> str:
    """`20 passed, 1 failed, 1 remark` as rich markup."""
    for pattern, colour in ((r"[1-9]\d* passed", "green"), (r"[1-9]\d* failed", "red"), (r"\d+ remarks?", "yellow")):
        counts = re.sub(pattern, rf"[{colour}]\g<0>[/]", counts)
    return counts


def to_text(*lines: str) -> str:
    """Lines, which may contain rich markup, as text. They are not wrapped."""
    stream = io.StringIO()
    # With NO_COLOR, rich still writes bold words.
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = PlainConsole(file=stream, force_terminal=styled, width=output_width(), highlight=False, emoji=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
