"""Control characters of foreign texts do not reach a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.table import Table

from builder import log
from builder.__main__ import run_command
from builder.errors import Code, Exit, UsageError
from builder.log import PlainConsole, print_error, print_line, print_warning
from builder.untrusted import split_url, visible, visible_with_colours

#: A title, a cursor movement, a colour, a backspace, an 8-bit control sequence, a change of direction.
HOSTILE = "\x1b]0;title\x07a\x1b[2Jb\x1b[31mc\bd\x9b31me\u202ef\r"
SHOWN = r"\x1b]0;title\x07a\x1b[2Jbc\x08d\x9b31me\u202ef\r"


def test_control_characters_become_visible() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\né☃\U0001f600") == "a\tb\né☃\U0001f600"
    assert visible_with_colours("\x1b[1mbold\x1b[0m\x1b[2J") == "\x1b[1mbold\x1b[0m\\x1b[2J"


def test_messages_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(log.console, "_file", stream)
    print_line(HOSTILE)
    print_warning(HOSTILE)
    print_error(UsageError(HOSTILE, Code.VALUE_INVALID, where=HOSTILE, hints=[HOSTILE]))
    assert stream.getvalue().count(r"\x1b[2Jb") == 5
    assert visible(stream.getvalue()) == stream.getvalue()


def test_tables_keep_their_own_colours() -> None:
    stream = io.StringIO()
    table = Table("[red]name[/]", style="green")
    table.add_row(HOSTILE)
    console = PlainConsole(file=stream, force_terminal=True, color_system="standard", width=200)
    console.print(table)
    assert "\x1b[32m" in stream.getvalue()
    assert r"\x1b]0;titlea\x1b[2Jb" in stream.getvalue()  # rich itself drops the bell
    assert "\x1b[2J" not in stream.getvalue()


def test_a_reason_in_the_matrix_has_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/extension.yaml").write_text(
        "name: ops\nversion: 1.0.0\nsource: {path: .}\nabi: cpython\ncuda: required\nimports: [ops]\n"
    )
    (tmp_path / "matrix.yaml").write_text(
        "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [ops]\n"
        'exclude:\n  - {torch: 2.11, reason: "\\e]0;title\\a \\e[31mred"}\n'
    )
    monkeypatch.setattr(sys, "argv", ["buildfarm", "plan", "--explain", "--matrix", str(tmp_path / "matrix.yaml")])
    assert run_command() == Exit.USAGE
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x07" not in out + err


@pytest.mark.parametrize("text", ["http://[x", "https://[::1/a.whl", "http://[x]y/"])
def test_a_text_that_is_no_url_has_no_host_and_no_path(text: str) -> None:
    assert (split_url(text).scheme, split_url(text).hostname, split_url(text).path) == ("", None, "")
