"""Messages on stderr: unchanged text, one line each; control characters of foreign texts do not reach a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.table import Table

import builder
from builder import log
from builder.__main__ import run_command
from builder.errors import Code, Exit, MissingToolError, UsageError
from builder.log import PlainConsole, Verbosity, print_error, print_line, print_warning
from builder.untrusted import split_url, visible, visible_with_colours

#: A title, a cursor movement, a colour, a backspace, an 8-bit control sequence, a change of direction.
HOSTILE = "\x1b]0;title\x07a\x1b[2Jb\x1b[31mc\bd\x9b31me\u202ef\r"
SHOWN = r"\x1b]0;title\x07a\x1b[2Jbc\x08d\x9b31me\u202ef\r"
ODD = r"std::vector<int>[0] of [red]x[/red] [bold] :warning: C:\path\ "


def test_messages_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_text_is_printed_unchanged(output: io.StringIO) -> None:
    print_line(ODD)
    print_warning(ODD)
    print_error(UsageError(ODD, Code.VALUE_INVALID, where="[tool.x]", hints=[ODD]))
    assert output.getvalue().splitlines() == [
        ODD,
        f"warning: {ODD}",
        f"error[value-invalid]: [tool.x]: {ODD}",
        f"  hint: {ODD}",
    ]


def test_a_long_line_stays_one_line(output: io.StringIO) -> None:
    print_line("word " * 200)
    assert output.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("who", "about"), [((), ""), (("a-1.0",), "a-1.0: "), (("a-1.0", "b-1.0", "c-1.0"), "a-1.0 and 2 more: ")]
)
def test_an_error_names_the_stopped_builds_and_its_hints(who: tuple[str, ...], about: str, output: io.StringIO) -> None:
    print_error(
        MissingToolError("no nvcc", Code.TOOLKIT_MISSING, where="CUDA_HOME", hints=["set it", "install one"]), who=who
    )
    assert (
        output.getvalue() == f"error[toolkit-missing]: {about}CUDA_HOME: no nvcc\n  hint: set it\n  hint: install one\n"
    )


def test_each_code_is_that_of_an_error() -> None:
    package = Path(builder.__file__).parent
    code = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    assert [each.name for each in Code if f"Code.{each.name}" not in code] == []
    assert list(Code) == sorted(Code, key=str)
    assert all(each.name == each.replace("-", "_").upper() for each in Code)


def test_quiet_prints_warnings_and_errors_only(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "verbosity", Verbosity(quiet=True))
    print_line("hello")
    print_warning("careful")
    print_error(UsageError("wrong", Code.VALUE_INVALID))
    assert output.getvalue() == "warning: careful\nerror[value-invalid]: wrong\n"


def test_control_characters_become_visible() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\né☃\U0001f600") == "a\tb\né☃\U0001f600"
    assert visible_with_colours("\x1b[1mbold\x1b[0m\x1b[2J") == "\x1b[1mbold\x1b[0m\\x1b[2J"


def test_messages_are_plain(output: io.StringIO) -> None:
    print_line(HOSTILE)
    print_warning(HOSTILE)
    print_error(UsageError(HOSTILE, Code.VALUE_INVALID, where=HOSTILE, hints=[HOSTILE]))
    assert output.getvalue().count(r"\x1b[2Jb") == 5
    assert visible(output.getvalue()) == output.getvalue()


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
