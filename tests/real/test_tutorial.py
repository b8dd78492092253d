"""The tutorial: the files and commands of docs/tutorial.md, in an empty folder, in the order of the page."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.wheels.toolchain.uv import find_uv
from tests.conftest import BUILDFARM, ROOT, run

pytestmark = [pytest.mark.network, pytest.mark.slow]

PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r'^```(?:\w+ title="(?P<file>[^"]+)"|console)\n(?P<text>.*?)^```$', re.M | re.S)


@dataclass(frozen=True)
class Command:
    """A command of the page: the lines of output that the page shows, and the exit code."""

    line: str
    shown: tuple[str, ...]
    code: int


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each file (name, contents) and each console block ("", text), in the order of the page."""
    for found in _BLOCK.finditer(text):
        yield found["file"] or "", found["text"]


def commands(text: str) -> Iterator[Command]:
    """The commands of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        line, *shown = part.rstrip("\n").split("\n")
        codes = [int(each.rpartition(" ")[2]) for each in shown if each.startswith("! exit code ")]
        yield Command(line, tuple(each for each in shown if each and each != "..." and each[0] != "!"), *codes or [0])


def loosely(line: str) -> str:
    """A line without what differs between machines: spaces, numbers, sizes, times, folders."""
    line = re.sub(r"file://\S+?/(dist|index)\b", r"file:///.../\1", line)
    line = re.sub(r"--find-links /\S+?/dist\b", "--find-links /.../dist", line)
    line = re.sub(r"--python ('[^']+'|/\S+)", "--python PATH", line)
    line = re.sub(r"manylinux_2_\d+|\d+(\.\d+)*( s| [KM]iB)?", "N", line)
    return " ".join(line.replace(" reused", " N").split())


def as_printed(line: str, output: list[str]) -> str:
    """A command with `/.../` in its paths as an earlier command printed it, as a reader of the page copies it."""
    if "/.../" not in line:
        return line
    return next(each for each in reversed(output) if loosely(each) == loosely(line))


def test_page_has_files_and_commands() -> None:
    found = list(blocks(PAGE.read_text(encoding="utf-8")))
    assert {"matrix.yaml", "extensions/axpby/cases.py"} <= {name for name, _ in found}
    assert sum(len(list(commands(text))) for name, text in found if not name) == 10
    # No fenced block escapes the test.
    assert len(found) == PAGE.read_text(encoding="utf-8").count("\n```\n")


def test_tutorial_works_as_written(
    tmp_path: Path, store: Path, python_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [BUILDFARM.parent, find_uv().parent, Path(sys.executable).parent, python_of("3.12").parent]
    environment = {
        "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]]),
        "BUILDFARM_STORE": str(store),
        "UV_PYTHON_DOWNLOADS": "never",
    }
    output: list[str] = []
    active = ""
    try:
        for name, text in blocks(PAGE.read_text(encoding="utf-8")):
            if name:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8")
            for command in commands(text) if not name else ():
                line = as_printed(command.line, output)
                ran = run("bash", "-c", active + line, cwd=tmp_path, env=environment)
                active = ". env/bin/activate; " if "activate" in line else active
                output += ran.all.splitlines()
                assert ran.code == command.code, f"{command.line}\n{ran.all}"
                printed = {loosely(line) for line in ran.all.splitlines()}
                missing = [line for line in command.shown if loosely(line) not in printed]
                assert not missing, f"{command.line}\nthe page shows {missing}; printed was\n{ran.all}"
    finally:
        shutil.rmtree(tmp_path / "env", ignore_errors=True)
