"""Safe text, ends of logs, and the picture of the timeline."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from builder.publish.runs.page import kind_of, picture
from builder.publish.runs.view import LogEnd, plain, read_end
from tests.unit.publish.runs.make import FAILED, GOOD, log, timeline


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31merror\x1b[0m: x", "error: x"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x07", "link"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("a\r\nb", "a\nb"),
        ("a\x00b\x9bc\u202ed", "a\ufffdb\ufffdc\ufffdd"),
        ("a\tb", "a\tb"),
        ("x" * 12, "xxxxxxxxxx … (2 more characters)"),
    ],
)
def test_plain_text(text: str, shown: str) -> None:
    assert plain(text, 10) == shown


def test_long_lines_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    end = read_end(log(tmp_path))
    assert end is not None
    assert end.lines[-1] == "\ufffd\ufffd end"
    assert end.first + len(end.lines) - 1 == 141
    assert max(map(len, end.lines)) < 500
    (tmp_path / "short").write_text("a\nb\n")
    assert read_end(tmp_path / "short") == LogEnd(str(tmp_path / "short"), 1, ("a", "b"))
    assert read_end(tmp_path / "deleted") is None


def test_the_picture_is_one_svg_with_a_row_for_each_build() -> None:
    text = picture(timeline(), {GOOD: "built", FAILED: "failed"})
    svg = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert svg.attrib["aria-labelledby"] == svg[0].attrib["id"]
    assert svg[0].text == "Timeline: 3 rows in 2:00"
    shown = [element.text or "" for element in svg.iter(f"{space}text")]
    assert GOOD in shown
    assert "compile" in shown, "the bar is wide enough for its text"
    assert shown.count("built") == shown.count("failed") == 1
    assert len(list(svg.iter(f"{space}rect"))) == len(timeline().stages) + 5, "with those of the legend"
    assert "script" not in {element.tag.removeprefix(space) for element in svg.iter()}
    widths = [float(rect.attrib["x"]) + float(rect.attrib["width"]) for rect in svg.iter(f"{space}rect")]
    assert max(widths) <= 1000


def test_kinds_of_stages() -> None:
    checks = ("run every op in x", "prove in x")
    stages = ("resolve", "waiting for another build", "compile", "repair", *checks, "before-all")
    assert [kind_of(stage) for stage in stages] == ["prepare", "wait", "compile", "repair", "check", "check", "prepare"]
