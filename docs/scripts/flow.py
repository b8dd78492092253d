"""Draws pictures/flow.yaml as an SVG that is readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml

BOX_WIDTH, COLUMN_WIDTH, MARGIN = 158, 198, 24
TITLE_HEIGHT, LINE_HEIGHT, PADDING, GAP = 20, 16, 12, 18
TOP, FOOTER = 58, 40

STYLE = """
  .page { fill: #ffffff; stroke: #d5dae1 }
  .box { fill: #f4f6f9; stroke: #8793a3 }
  .passed { fill: #e8f5ec; stroke: #2f8f4e }
  .heading { fill: #4b5766; font-weight: 600; font-size: 13px; letter-spacing: .06em }
  .title { fill: #16202b; font-weight: 600; font-size: 14px }
  .line, .footer { fill: #4b5766; font-size: 12px }
  .tick { fill: none; stroke: #2f8f4e; stroke-width: 2.2 }
  .arrow { fill: none; stroke: #5b6b7d; stroke-width: 1.5 }
  .head { fill: #5b6b7d }
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12181f; stroke: #323d49 }
    .box { fill: #1d2630; stroke: #66768a }
    .passed { fill: #14301f; stroke: #46b36a }
    .heading, .line, .footer { fill: #aebac8 }
    .title { fill: #eef3f8 }
    .tick { stroke: #46b36a }
    .arrow { stroke: #93a4b8 }
    .head { fill: #93a4b8 }
  }
"""


@dataclass(frozen=True)
class Box:
    """A placed box; pixels."""

    x: float
    y: float
    height: float
    title: str
    lines: tuple[str, ...]
    passed: bool

    @property
    def middle(self) -> float:
        """The height at which arrows touch it."""
        return self.y + self.height / 2


def draw(source: Path) -> str:
    """The SVG of a picture's text source, with a final newline."""
    data = yaml.safe_load(source.read_text(encoding="utf-8"))
    heights = [_column_height(column["boxes"]) for column in data["columns"]]
    tallest = max(heights)
    boxes = {
        name: box
        for number, (column, height) in enumerate(zip(data["columns"], heights, strict=True))
        for name, box in _placed(column["boxes"], MARGIN + number * COLUMN_WIDTH, TOP + (tallest - height) / 2)
    }
    width = 2 * MARGIN + (len(heights) - 1) * COLUMN_WIDTH + BOX_WIDTH
    height = TOP + tallest + FOOTER + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" role="img">',
        "<title>How buildfarm turns a declaration into proven wheels</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="page" x=".5" y=".5" width="{width - 1}" height="{height - 1:g}" rx="10"/>',
        *(_heading(number, column["heading"]) for number, column in enumerate(data["columns"])),
        *(_arrow(boxes[first], boxes[last], *how, bottom=TOP + tallest) for first, last, *how in data["arrows"]),
        *(text for box in boxes.values() for text in _drawn(box)),
        _text("footer", width / 2, height - 18, data["footer"]),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box_height(box: dict[str, Any]) -> float:
    return 2 * PADDING + TITLE_HEIGHT + LINE_HEIGHT * len(box["lines"]) - 4


def _column_height(boxes: list[dict[str, Any]]) -> float:
    return sum(map(_box_height, boxes)) + GAP * (len(boxes) - 1)


def _placed(boxes: list[dict[str, Any]], x: float, y: float) -> Iterator[tuple[str, Box]]:
    for box in boxes:
        height = _box_height(box)
        yield box["id"], Box(x, y, height, box["title"], tuple(box["lines"]), bool(box.get("passed")))
        y += height + GAP


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="middle">{escape(text)}</text>'


def _heading(number: int, text: str) -> str:
    return _text("heading", MARGIN + number * COLUMN_WIDTH + BOX_WIDTH / 2, 36, text.upper())


def _drawn(box: Box) -> Iterator[str]:
    kind = "passed" if box.passed else "box"
    yield f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{BOX_WIDTH}" height="{box.height:g}" rx="7"/>'
    centre, y = box.x + BOX_WIDTH / 2, box.y + PADDING + 12
    yield _text("title", centre, y, box.title)
    for number, line in enumerate(box.lines):
        yield _text("line", centre, y + TITLE_HEIGHT + LINE_HEIGHT * number, line)
    if box.passed:
        yield f'<path class="tick" d="M{box.x + BOX_WIDTH - 28:g} {box.y + 19:g}l4 4l7 -9"/>'


def _arrow(first: Box, last: Box, how: str = "", *, bottom: float) -> str:
    if first.x == last.x:
        middle = first.x + BOX_WIDTH / 2
        path = f"M{middle:g} {first.y + first.height:g}V{last.y:g}"
    elif how == "around":  # below the columns in between
        start, end, low = first.x + BOX_WIDTH / 2, last.x + BOX_WIDTH / 2, bottom + 14
        path = (
            f"M{start:g} {first.y + first.height:g}V{low - 8:g}q0 8 8 8H{end - 8:g}q8 0 8 -8V{last.y + last.height:g}"
        )
    else:
        start, end = first.x + BOX_WIDTH, last.x
        half = (start + end) / 2
        path = f"M{start:g} {first.middle:g}C{half:g} {first.middle:g} {half:g} {last.middle:g} {end:g} {last.middle:g}"
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'
