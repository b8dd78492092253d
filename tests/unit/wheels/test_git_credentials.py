"""A git repository behind a password: git gets it, and no file, argument or message has it."""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from builder.errors import MissingToolError
from builder.matrix.config import GitSource
from builder.wheels.sources.git import checkout, resolve_revision

SECRET = "s3cr:t/x"


class Protected(SimpleHTTPRequestHandler):
    """Serves files to the user `robot` with SECRET."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(f"robot:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") == wanted:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic realm=x")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        del args


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a repository, without a scheme, and its commit."""
    work, bare = tmp_path / "work", tmp_path / "served/ops.git"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (
        ["init", "-q", str(work)],
        ["-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "1"],
        ["clone", "-q", "--bare", str(work), str(bare)],
        ["-C", str(bare), "update-server-info"],
    ):
        subprocess.run(["git", *words], check=True)
    commit = subprocess.run(["git", "-C", str(bare), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    handler = partial(Protected, directory=str(tmp_path / "served"))
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{http.server_port}/ops.git", commit.stdout.strip()
    http.shutdown()
    http.server_close()


def test_git_gets_the_password_and_keeps_it_nowhere(
    server: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, commit = server
    wrapper = tmp_path / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/arguments\n'
        f'PATH={shlex.quote(os.environ["PATH"])} exec git "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    source = GitSource(f"http://robot:s3cr%3At%2Fx@{address}", commit)
    tree = checkout(source, cache=tmp_path / "cache")
    assert resolve_revision(source.url, "") == commit
    assert SECRET not in (tmp_path / "arguments").read_text()
    assert "s3cr" not in (tmp_path / "arguments").read_text()
    for file in (path for path in (tree / ".git").rglob("*") if path.is_file()):
        assert b"s3cr" not in file.read_bytes(), file


@pytest.mark.parametrize("user", ["", "robot:wr0ng@"])
def test_a_private_repository(server: tuple[str, str], tmp_path: Path, user: str) -> None:
    with pytest.raises(MissingToolError) as caught:
        checkout(GitSource(f"http://{user}{server[0]}", server[1]), cache=tmp_path)
    assert "an access token and `@` before the host" in "".join(caught.value.hints)
    assert "wr0ng" not in f"{caught.value} {caught.value.hints}"
    assert ("***" in caught.value.where) is bool(user)
