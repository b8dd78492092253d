"""`serve` before the server runs, `token`, and every command in an empty folder."""

import os
import re
import socket
import sys
import venv as venvs
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder import log
from builder.__main__ import run_command
from builder.cli.app import app
from builder.commands.index.serve import host_of
from builder.errors import Code, MissingToolError, UsageError
from builder.matrix.config import MATRIX
from builder.publish.server import app as server
from builder.publish.server.app import open_socket
from builder.publish.server.tokens import Tokens
from docs.generate import DOCS, README
from tests.unit.transcripts import FOLDER, calls_of


def refusal(*words: str | Path) -> Exception | None:
    """Run `serve`, which ends with an error."""
    result = CliRunner().invoke(app, ["serve", *map(str, words)])
    assert isinstance(result.exception, Exception)
    return result.exception


def test_a_port_and_a_host_that_cannot_be_used(tmp_path: Path) -> None:
    with open_socket("127.0.0.1", 0) as used:
        error = refusal(tmp_path, "--port", str(used.getsockname()[1]))
    assert isinstance(error, UsageError)
    assert error.code is Code.VALUE_INVALID
    with pytest.raises(UsageError, match="cannot listen"):
        raise refusal(tmp_path / "new", "--host", "no.such.host.invalid") or AssertionError
    assert not (tmp_path / "new").exists()


def test_an_index_that_cannot_be_written_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", "0"])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    monkeypatch.setattr("builder.publish.server.app.run", lambda _, listening, **__: listening.close())
    assert "warning:" not in said()
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)
    assert "cannot be written, so the server refuses every upload" in said()


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "builder.publish.server.app")
    monkeypatch.delattr("builder.publish.server.app")
    error = refusal(tmp_path)
    assert isinstance(error, MissingToolError)
    assert "uvicorn" in error.sentence
    assert ".[serve]" in error.hints[0]


def test_tokens_on_the_command_line(tmp_path: Path) -> None:
    def token(*words: str) -> str:
        result = CliRunner().invoke(app, ["token", words[0], str(tmp_path), *words[1:]])
        assert result.exit_code == 0, result.output
        return result.stdout

    secret = token("add", "--name", "ci", "--scope", "upload:My_Ext", "--expires", "2h").strip()
    assert Tokens(tmp_path).find(secret)
    assert token("list").startswith("ci: upload:my-ext, expires 2")
    assert token("revoke", "ci") == "revoked ci\n"
    assert Tokens(tmp_path).find(secret) is None


def test_answers_do_not_wait_for_the_client() -> None:
    with open_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("address", "host"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("0.0.0.0", socket.gethostname()), ("::", socket.gethostname())],
)
def test_the_printed_url_works_on_other_machines(address: str, host: str) -> None:
    assert host_of(address) == host


pytestmark = pytest.mark.usefixtures("index")

NO_PROJECT = "the index has no such {}: it has no project of this name"
#: Commands that ask an index or run, and whose output names a Python: the exit code and the first sentence.
OUTCOMES = {
    "add torch-scatter==2.1.2": (2, f"torch-scatter 2.1.2: {NO_PROJECT.format('source distribution')}"),
    "build torch-scatter==2.1.2 --torch 2.11 --cuda 13.0": (
        2,
        f"torch-scatter 2.1.2: {NO_PROJECT.format('source distribution')}",
    ),
    "facts --torch 2.16": (2, f"torch 2.16.*: {NO_PROJECT.format('wheel')}"),
    "init": (0, "folder"),
    "smoke torchvision==0.26.0 --torch 2.11": (2, f"torchvision 0.26.0: {NO_PROJECT.format('wheel')}"),
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
    monkeypatch.setattr(log, "_printed", [])
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
