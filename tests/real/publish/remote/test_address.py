"""The URL of an index server and the token for it: what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.publish.index.reader import token_for
from builder.publish.server.client import root_url
from tests.conftest import coded
from tests.real.publish.remote.make import proven_wheel
from tests.unit.publish.index.conftest import Run


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("https://wheels.example", "https://wheels.example/"),
        ("https://wheels.example:8443/team//", "https://wheels.example:8443/team/"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/"),
        ("http://127.9.9.9", "http://127.9.9.9/"),
        ("http://[::1]:8080", "http://[::1]:8080/"),
        ("http://localhost:8080", "http://localhost:8080/"),
    ],
)
def test_the_root(url: str, root: str) -> None:
    assert root_url(url) == root


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://wheels.example/", "everybody on the network can read the token"),
        ("http://10.0.0.1:8080/", "everybody on the network can read the token"),
        ("http://localhost.example/", "everybody on the network can read the token"),
        ("http://127.0.0.1.example/", "everybody on the network can read the token"),
        ("https://", "this is no URL of an index"),
        ("https://wheels.example/?x=1", "this is no URL of an index"),
        ("https://wheels.example:port/", "this is no URL"),
        ("https://[::1/", "this is no URL"),
        ("https://me:verysecret@wheels.example/", "visible to every user"),
        ("http://verysecret@127.0.0.1/", "visible to every user"),
    ],
)
def test_refused_urls(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str) -> None:
    monkeypatch.setenv("BUILDFARM_TOKEN", "buildfarm_x")
    code, out, err = run("publish", proven_wheel(tmp_path), "--to", url, "--store", tmp_path / "store")
    assert (code, sentence in " ".join(err.split())) == (2, True), err
    assert "verysecret" not in out + err


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, netrc = "https://wheels.example:8443/", tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    with pytest.raises(UsageError, check=coded(Code.LOGIN_REFUSED)) as error:
        token_for(url, {})
    assert "machine wheels.example login __token__ password TOKEN" in error.value.hints[-1]
    netrc.write_text("machine wheels.example login me password other\n")
    with pytest.raises(UsageError, check=coded(Code.LOGIN_REFUSED)):
        token_for(url, {})
    netrc.write_text("machine wheels.example login __token__ password by-netrc\n")
    netrc.chmod(0o600)
    assert token_for(url, {}) == "by-netrc"
    assert token_for(url, {"BUILDFARM_TOKEN": "by-variable\n"}) == "by-variable"
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        token_for(url, {"BUILDFARM_TOKEN": "a\nb"})
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        token_for(url, {"BUILDFARM_TOKEN": "é"})
