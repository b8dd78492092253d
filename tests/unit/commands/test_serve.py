"""`serve` before the server runs, and `token`."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli.app import app
from builder.commands.index.serve import host_of
from builder.errors import Code, MissingToolError, UsageError
from builder.publish.server.app import open_socket
from builder.publish.server.tokens import Tokens


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
        raise refusal(tmp_path, "--host", "no.such.host.invalid") or AssertionError


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
    (listed,) = json.loads(token("list", "--json"))
    assert set(listed) == {"name", "scopes", "created", "expires"}
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
