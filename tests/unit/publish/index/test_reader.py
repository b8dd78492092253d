"""Reading an index that needs a token."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.errors import Code, Exit
from builder.publish.index.objects import Folder
from builder.publish.index.reader import IndexReader, login_for
from builder.publish.index.repository import Repository
from tests.refused import refused
from tests.unit.loopback import serving
from tests.unit.publish.index.conftest import Run
from tests.unit.publish.index.make import ready

WANTED = f"Basic {base64.b64encode(b'__token__:right').decode()}"
CELL = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")


class Handler(SimpleHTTPRequestHandler):
    """Serves files, if `private` to those who have the token; notes what they send."""

    def __init__(self, *args: Any, private: bool, seen: list[str | None], **options: Any) -> None:
        self.private, self.seen = private, seen
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        if self.private and self.seen[-1] != WANTED:
            self.send_error(401)
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        """Print nothing."""


@contextmanager
def index_on_server(folder: Path, monkeypatch: pytest.MonkeyPatch, *, private: bool) -> Iterator[tuple[str, list[Any]]]:
    """The URL of an index with one wheel, and what its clients sent."""
    monkeypatch.delenv("BUILDFARM_TOKEN", raising=False)
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    Repository(Folder(folder / "index")).add(ready(folder))
    seen: list[str | None] = []
    with serving(partial(Handler, private=private, seen=seen, directory=str(folder / "index"))) as address:
        yield f"http://{address}/", seen


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an index that needs a token."""
    with index_on_server(tmp_path, monkeypatch, private=True) as (address, _):
        yield address


def test_the_token_comes_from_variable_url_or_netrc(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(Code.LOGIN_REFUSED, "401") as caught:
        IndexReader(url).entries("my_ext")
    assert caught.value.where == url
    assert "BUILDFARM_TOKEN" in caught.value.hints[0]
    with_password = url.replace("://", "://__token__:right@")
    assert len(IndexReader(with_password).entries("my_ext")) == 1
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login __token__ password right\n")
    (tmp_path / "netrc").chmod(0o600)
    assert len(IndexReader(url).entries("my_ext")) == 1
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("BUILDFARM_TOKEN", "wrong")
    with refused(Code.LOGIN_REFUSED, "401"):
        IndexReader(url).entries("my_ext")
    monkeypatch.setenv("BUILDFARM_TOKEN", "right")
    (entry,) = IndexReader(url).entries("my_ext")
    assert IndexReader(url).requires(entry) == ()


def test_an_index_that_asks_for_no_token_does_not_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index_on_server(tmp_path, monkeypatch, private=False) as (address, seen):
        monkeypatch.setenv("BUILDFARM_TOKEN", "right")
        assert len(IndexReader(address).entries("my_ext")) == 1
    assert set(seen) == {None}


def test_the_commands_contain_no_password(url: str, run: Run) -> None:
    code, out, err = run("resolve", "my_ext", "--index", url.replace("://", "://__token__:right@"), *CELL)
    assert code == Exit.OK, err
    assert url in out
    assert "@127" not in out
    assert "***" not in out
    assert "pip and uv read it from ~/.netrc" in err


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("https://wheels.example/", ("__token__", "secret")),
        ("http://127.0.0.1:8080/", ("__token__", "secret")),
        ("http://wheels.example/", None),
        ("https://me:p%40ss@wheels.example/", ("me", "p@ss")),
    ],
)
def test_without_tls_only_this_machine_gets_the_token(url: str, login: tuple[str, str] | None) -> None:
    assert login_for(url, {"BUILDFARM_TOKEN": "secret\n"}) == login


def test_the_bundle_of_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, seen = tmp_path / "ca.pem", []
    bundle.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))

    def get(_: str, **options: Any) -> None:
        seen.append(options["verify"])
        raise requests.ConnectionError

    monkeypatch.setattr("requests.get", get)
    with refused(Code.NETWORK_UNREACHABLE):
        IndexReader("https://wheels.example/").entries("my_ext")
    assert seen == [str(bundle)]
