"""Safe text, log excerpts, and the picture of the timeline."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from builder.publish.runs.page import kind_of, picture
from builder.publish.runs.view import TAIL, plain, read_excerpt
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


LOGS: dict[str, tuple[list[str], str, int]] = {
    "reported": (["a: error: first", "/src/b.cu(2): error: no"], "b.cu(2): error: no", 2),
    "the first in the log": (["x"] * 9 + ["fatal: no such remote"] + ["y"] * 50, "the build failed", 10),
    "none": (["nothing", "is named"], "the build failed", 0),
    "a command": (["+ g++ -Werror: x", "ok"], "the build failed", 0),
    "not looked for": (["a: error: x"], "", 0),
    "empty log": ([], "the build failed", 0),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_first_error_of_a_log(name: str, tmp_path: Path) -> None:
    (lines, sentence, found), path = LOGS[name], tmp_path / "log"
    path.write_text("".join(f"{line}\n" for line in lines))
    excerpt = read_excerpt(path, sentence)
    assert excerpt is not None
    assert list(excerpt.tail) == lines[-TAIL:]
    assert excerpt.tail_first == max(len(lines) - TAIL, 0) + 1
    if found:
        assert excerpt.error[excerpt.here] == lines[found - 1]
        assert excerpt.first + excerpt.here == found
    else:
        assert not excerpt.error


def test_long_lines_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    excerpt = read_excerpt(log(tmp_path), "unknown")
    assert excerpt is not None
    assert excerpt.tail[-1] == "\ufffd\ufffd end"
    assert excerpt.tail_first + len(excerpt.tail) - 1 == 141, "a long line counts once"
    assert max(map(len, (*excerpt.error, *excerpt.tail))) < 500
    assert read_excerpt(tmp_path / "deleted", "x") is None


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
