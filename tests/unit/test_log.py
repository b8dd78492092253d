"""Talk to a person: said on stderr as it was written, and never silent for long."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from builder import log
from builder.errors import MissingToolError, UsageError
from builder.log import Progress, complain, say, warn

ODD = r"std::vector<int>[0] of [red]x[/red] [bold] :warning: C:\path\ "


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is said, by any thread; not a terminal."""
    stream = io.StringIO()
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(log.console, "_file", stream)
    return stream


def test_talk_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_text_is_printed_as_it_is_written(talk: io.StringIO) -> None:
    say(ODD)
    warn(ODD)
    complain(UsageError(ODD, where="[tool.x]", hints=[ODD]))
    assert talk.getvalue().splitlines() == [
        ODD,
        f"warning: {ODD}",
        f"error: [tool.x]: {ODD}",
        f"  hint: {ODD}",
    ]


def test_a_long_line_stays_one_line(talk: io.StringIO) -> None:
    say("word " * 200)
    assert talk.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("who", "about"), [((), ""), (("a-1.0",), "a-1.0: "), (("a-1.0", "b-1.0", "c-1.0"), "a-1.0 and 2 more: ")]
)
def test_an_error_names_whom_it_stopped_and_each_way_out(who: tuple[str, ...], about: str, talk: io.StringIO) -> None:
    complain(MissingToolError("no nvcc", where="CUDA_HOME", hints=["set it", "install one"]), who=who)
    assert talk.getvalue() == f"error: {about}CUDA_HOME: no nvcc\n  hint: set it\n  hint: install one\n"


def test_without_a_terminal_each_stage_is_a_line(talk: io.StringIO, tmp_path: Path) -> None:
    progress = Progress()
    with progress.shown():
        progress.start("one[x]", tmp_path / "absent.log")
        progress.stage("one[x]", "compile")
        progress.finish("one[x]", "built")
    assert talk.getvalue() == "one[x]: compile (0:00)\none[x]: built in 0:00\n"


def test_a_long_stage_is_heard_of_again_with_the_last_line_of_its_log(
    talk: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "HEARTBEAT_SECONDS", 0.02)
    path = tmp_path / "build.log"
    progress = Progress()
    with progress.shown():
        progress.start("one", path)
        progress.stage("one", "compile")
        progress.start("two")
        progress.stage("two", "fetch")
        progress.finish("two", "built")
        path.write_bytes(b"[1/2] a.cu\n[2/2] \xff.cu\n\n")
        deadline = time.monotonic() + 20
        while "[2/2]" not in talk.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
    lines = talk.getvalue().splitlines()
    assert lines[:3] == ["one: compile (0:00)", "two: fetch (0:00)", "two: built in 0:00"]
    assert lines[3].startswith("one: compile (0:0")
    assert lines[3].endswith("  [2/2] \ufffd.cu")
    assert not [line for line in lines[3:] if line.startswith("two")]


def shown(progress: Progress) -> list[str]:
    """The live table as a terminal has it."""
    console = Console(file=io.StringIO(), width=120, emoji=False)
    console.print(progress)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_terminal_sees_each_build_with_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "build.log"
    path.write_text("of an earlier run\n")
    progress = Progress()
    progress.start("one", path)
    progress.start("two")
    assert shown(progress) == ["one  waiting 0:00", "two  waiting 0:00"]
    with path.open("a") as stream:
        stream.write("[1/2] nvcc a.cu\n")
    assert shown(progress)[0] == "one  waiting 0:00  [1/2] nvcc a.cu"
    path.write_text("begun anew\n")
    assert shown(progress)[0] == "one  waiting 0:00  begun anew"
    progress.finish("one", "failed: no [nvcc]")
    assert shown(progress)[0] == "one  failed: no [nvcc] in 0:00"
