"""Pictures of recorded terminals: recordings/NAME.ansi to pictures/NAME.svg, by rich."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

_THEME = TerminalTheme(
    (18, 24, 31),
    (222, 230, 238),
    [
        (60, 70, 80),
        (255, 110, 103),
        (95, 215, 135),
        (230, 190, 90),
        (110, 170, 255),
        (215, 140, 235),
        (90, 205, 220),
        (222, 230, 238),
    ],
)

#: Like rich's own, with fonts of the machine that shows it: a picture on a page loads nothing from elsewhere.
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture(recording: Path) -> str:
    """The SVG of a recording."""
    text = Text.from_ansi(recording.read_text(encoding="utf-8").rstrip("\n") + "\n ")
    width = max(line.cell_len for line in text.split("\n"))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(text, soft_wrap=True, highlight=False)
    title = "buildfarm " + recording.stem
    return console.export_svg(title=title, theme=_THEME, code_format=_FORMAT, unique_id=f"buildfarm-{recording.stem}")
