"""Messages on stderr: unchanged text, one line each."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import builder
from builder import log
from builder.errors import Code, MissingToolError, UsageError
from builder.log import Verbosity, print_error, print_line, print_warning

ODD = r"std::vector<int>[0] of [red]x[/red] [bold] :warning: C:\path\ "


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The messages of all threads, as a stream that is not a terminal."""
    stream = io.StringIO()
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(log.console, "_file", stream)
    return stream


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
