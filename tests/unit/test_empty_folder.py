"""Every command of the tables of jobs in an empty folder: it works, or its error says what it needs."""

from __future__ import annotations

import re
import sys
import venv as venvs
from pathlib import Path

import pytest

from builder.__main__ import run_command
from builder.cli import output
from builder.matrix.config import MATRIX
from builder.publish.server import app as server
from docs.generate import DOCS, README
from tests.unit.transcripts import FOLDER, calls_of

pytestmark = pytest.mark.usefixtures("index")

#: Commands whose output names the Python of the tests, and those that run: the exit code and the first sentence.
OUTCOMES = {
    "init": (0, "folder"),
    "smoke torchvision==0.26.0 --torch 2.11": (
        2,
        "torchvision 0.26.0: the index has no such wheel: it has no project of this name",
    ),
    "serve index": (0, "serving index on http://HOST/simple/"),
    "doctor": (1, "python     VERSION ENV/bin/python"),
}
COMMANDS = {
    command
    for page in (README, DOCS / "index.md")
    for row in re.findall(r"^\| .+ \| (.*`.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for command in re.findall(r"`buildfarm ([^`]+)`", row)
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("environment")
    venvs.create(made, with_pip=False)
    return made


@pytest.fixture
def folder(tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with an empty store, an empty environment, an empty package index, and no GPU and no engine."""
    made = tmp_path / "folder"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    monkeypatch.setenv("BUILDFARM_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")  # over a unix socket, the SDK would leave it open
    listen = server.open_socket
    monkeypatch.setattr(server, "open_socket", lambda host, _: listen(host, 0))
    monkeypatch.setattr(server, "run", lambda _app, listening, **_: listening.close())
    return made


def message(out: str, err: str) -> str:
    """The error without its hints and without what uv said, else the first line of the output."""
    if error := re.search(
        r"^error\[[a-z-]+\]: (.*?)(?=\n  hint: |\nwarning: |: Because |\Z)", err, re.MULTILINE | re.DOTALL
    ):
        return " ".join(error[1].split())
    return (out or err).splitlines()[0]


@pytest.mark.parametrize("command", OUTCOMES)
def test_command_in_an_empty_folder(
    command: str,
    folder: Path,
    environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["buildfarm", *command.split()])
    monkeypatch.setattr(output, "_printed", [])
    code = run_command()
    text = message(*capsys.readouterr())
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST", text.replace(str(environment), "ENV"))
    assert (code, re.sub(r"\b3\.\d+\b", "VERSION", text) if command == "doctor" else text) == OUTCOMES[command]
    written = {path.name for path in folder.iterdir()}
    assert (
        MATRIX.name in written if command == "init" else written == ({"index"} if command == "serve index" else set())
    )


def test_every_command_of_the_tables_has_an_outcome() -> None:
    shown = {one.command.removeprefix("buildfarm ") for one in calls_of((FOLDER / "empty_folder.txt").read_text())}
    assert shown | OUTCOMES.keys() == COMMANDS
