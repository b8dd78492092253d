"""Every command of the tables of jobs in an empty folder: it works, or its error says what it needs."""

from __future__ import annotations

import re
import sys
import venv as venvs
from pathlib import Path

import pytest

from builder.__main__ import run_command
from builder.cli import options, output
from builder.matrix.config import MATRIX
from builder.publish.server import app as server
from docs.generate import DOCS, README

pytestmark = pytest.mark.usefixtures("index")

_NO_MATRIX = (
    2,
    "matrix.yaml: there is no such file; the command needs it, because it lists the extensions, torch, CUDA and Python",
)
_NO_SDIST = (2, "torch-scatter 2.1.2: the index has no such source distribution: it has no project of this name")
_NO_SCHEDULER = "'ADDRESS' is not the address of a scheduler"

#: Each command with its exit code and the first sentence of its message.
OUTCOMES = {
    "plan --explain": _NO_MATRIX,
    "build --dry-run": _NO_MATRIX,
    "facts --torch 2.16": (2, "torch 2.16.*: the index has no such wheel: it has no project of this name"),
    "init": (0, "folder"),
    "build torch-scatter==2.1.2 --torch 2.11 --cuda 13.0": _NO_SDIST,
    "add torch-scatter==2.1.2": _NO_SDIST,
    "build --torch 2.11 --cuda 13.0 --python 3.12 --ext NAME": _NO_MATRIX,
    "worker ADDRESS": (2, f"ADDRESS: {_NO_SCHEDULER}"),
    "build --scheduler ADDRESS": (2, f"--scheduler: {_NO_SCHEDULER}"),
    "build --arch native": (2, "--arch: `native` needs a GPU, but nvidia-smi finds no GPU on this machine"),
    "build --arch 9.0": _NO_MATRIX,
    "build --torch 2.2 --cuda 12.1": _NO_MATRIX,
    "render": _NO_MATRIX,
    "render --lock": _NO_MATRIX,
    "cases --ext NAME": _NO_MATRIX,
    "build": _NO_MATRIX,
    "smoke": _NO_MATRIX,
    "smoke FILE.whl --torch 2.11 --cuda 13.0 --python 3.12": (2, "FILE.whl: there is no such file"),
    "smoke torchvision==0.26.0 --torch 2.11": (
        2,
        "torchvision 0.26.0: the index has no such wheel: it has no project of this name",
    ),
    "smoke --ext NAME --pack gate.pyz": _NO_MATRIX,
    "rebuild --verify WHEEL": (2, "WHEEL: there is no such file"),
    "relabel FILE.whl": (2, "FILE.whl: there is no such file"),
    "publish --to index": (3, "there is no wheel to publish"),
    "publish --to https://wheels.example/": (
        2,
        "https://wheels.example/: an upload to an index server needs a token",
    ),
    "adopt NAME==VERSION --to index": (
        2,
        "NAME==VERSION: this names no wheel; pass a file, a URL, or a project with its version, such as"
        " torchvision==0.26.0",
    ),
    "verify WHEEL": (
        2,
        "WHEEL: the exact version is missing; pass NAME==VERSION, because a proof applies to one wheel",
    ),
    "serve index": (0, "serving index on http://HOST/simple/"),
    "token add index --name ci --scope upload": (2, "index: there is no such folder"),
    "resolve NAME --index index": (2, "--torch is not given, and the current environment has no torch (ENV)"),
    "ci --install REQUIREMENT": _NO_MATRIX,
    "doctor": (1, "python     VERSION ENV/bin/python"),
    "report": (3, "STORE: no run is recorded in this store"),
    "store prune --keep-days 30": (0, "0 items deleted, 0 bytes freed."),
    "store history": (0, "No run is recorded in this store."),
}
#: Commands that were asked to write into the folder.
WRITES = {"serve index": {"index"}}

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
    monkeypatch.delenv("BUILDFARM_TOKEN", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(options, "own_gpus", list)
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


@pytest.mark.parametrize("command", sorted(COMMANDS))
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
    for changing, fixed in (
        (re.escape(str(folder.parent / "store")), "STORE"),
        (re.escape(str(environment)), "ENV"),
        (r"127\.0\.0\.1:\d+", "HOST"),
        (r"buildfarm_[\w-]+", "TOKEN"),
        (r"\b3\.\d+\b", "VERSION" if command == "doctor" else r"\g<0>"),
    ):
        text = re.sub(changing, fixed, text)
    assert (code, text) == OUTCOMES[command]
    written = {path.name for path in folder.iterdir()}
    assert MATRIX.name in written if command == "init" else written == WRITES.get(command, set())


def test_every_command_of_the_table_has_an_outcome() -> None:
    assert set(OUTCOMES) == COMMANDS
