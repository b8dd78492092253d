"""`publish` to an index server: refused URLs, the token, and a server that answers strangely, or not at all."""

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.proof import PROOFS_SUFFIX
from builder.publish.index.new_wheel import read_entry
from builder.publish.index.reader import token_for
from builder.publish.index.repository import NewWheel
from builder.publish.server import client as server
from builder.publish.server.client import UploadBody, root_url
from tests.conftest import coded
from tests.real.publish.remote.make import proven_wheel
from tests.unit.conftest import Call
from tests.unit.loopback import Quiet, pure_wheel, serving


@dataclass
class Script:
    """A server that answers what the test says: a status and a text for each method and path."""

    answers: dict[str, list[tuple[int, str]]]
    seen: list[str] = field(default_factory=list)
    url: str = ""

    def next(self, request: str) -> tuple[int, str]:
        self.seen.append(request)
        found = next(answers for start, answers in self.answers.items() if request.startswith(start))
        return found.pop(0) if len(found) > 1 else found[0]


class Handler(Quiet, BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, text = self.script.next(f"{self.command} {self.path}")
        self.send_response(status)
        if status in {301, 307}:
            self.send_header("Location", text)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET  # noqa: N815 - the name is http.server's


Publish = Callable[..., tuple[int, str, Script]]


@pytest.fixture
def publish(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Publish a wheel to a server with these answers; returns the exit code, all that was printed, and the server."""
    monkeypatch.setenv("BUILDFARM_TOKEN", "buildfarm_secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(server, "_RETRIES", server._RETRIES.new(total=2, backoff_factor=0))
    wheel = proven_wheel(tmp_path / "dist")

    def invoke(page: tuple[int, str] = (404, ""), post: list[tuple[int, str]] | None = None) -> tuple[int, str, Script]:
        script = Script({"GET /simple/": [page], "POST /legacy/": post or [(200, "published")]})
        with serving(type("Own", (Handler,), {"script": script})) as address:
            code, out, err = call("publish", wheel, "--to", f"http://{address}/", "--store", tmp_path / "store")
        assert "buildfarm_secret" not in out + err
        return code, " ".join((out + err).split()), script

    return invoke


def test_a_busy_server_gets_a_few_attempts(publish: Publish) -> None:
    code, _, script = publish(post=[(503, "busy"), (502, ""), (200, "published\n")])
    assert (code, sum(one.startswith("POST") for one in script.seen)) == (0, 3)
    code, said, script = publish(post=[(503, "busy")])
    assert (code, sum(one.startswith("POST") for one in script.seen)) == (4, 3)
    assert "the server does not answer: the server answers with status 503" in said
    assert "run the command again; it continues" in said


@pytest.mark.parametrize("status", [400, 403, 409, 413, 507])
def test_a_refusal_is_not_repeated(publish: Publish, status: int) -> None:
    code, said, script = publish(post=[(status, "no, and \x1b[2J so on")])
    assert (code, sum(one.startswith("POST") for one in script.seen)) == (1, 1)
    assert "no, and" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        ((401, ""), 2, "the server does not know the token, or it has expired"),
        ((404, ""), 2, "there is no index server of buildfarm (status 404)"),
        ((405, ""), 2, "there is no index server of buildfarm (status 405)"),
        ((301, "https://me:password@elsewhere.example/"), 2, "the server redirects to https://***@elsewhere.example/"),
    ],
)
def test_a_server_that_takes_no_upload(publish: Publish, answer: tuple[int, str], code: int, sentence: str) -> None:
    found, said, script = publish(post=[answer])
    assert (found, sentence in said) == (code, True), said
    assert sum(one.startswith("POST") for one in script.seen) == 1


@pytest.mark.parametrize("page", ["<html>", "{}", '{"files": [{}]}', "[" * 10**6])
def test_a_page_that_is_none(publish: Publish, page: str) -> None:
    code, said, script = publish(page=(200, page))
    assert (code, "there is no index server of buildfarm" in said) == (2, True), said
    assert not any(one.startswith("POST") for one in script.seen)


def test_nobody_listens(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDFARM_TOKEN", "x")
    monkeypatch.setattr(server, "_RETRIES", server._RETRIES.new(total=1, backoff_factor=0))
    wheel = proven_wheel(tmp_path / "dist")
    code, _, err = call("publish", wheel, "--to", "http://127.0.0.1:9/", "--store", tmp_path / "store")
    assert (code, "the server does not answer" in " ".join(err.split())) == (4, True)


def test_a_large_wheel_is_never_in_memory(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "big", "1.0")
    entry, _ = read_entry(wheel)
    with wheel.open("wb") as stream:
        stream.truncate(300 * 2**20)
    tracemalloc.start()
    try:
        body = UploadBody(NewWheel(wheel, entry, {PROOFS_SUFFIX: "é".encode()}))
        size = sum(len(chunk) for chunk in body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == len(body)
    assert peak < 5 * 2**20


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
def test_refused_urls(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str) -> None:
    monkeypatch.setenv("BUILDFARM_TOKEN", "buildfarm_x")
    code, out, err = call("publish", proven_wheel(tmp_path), "--to", url, "--store", tmp_path / "store")
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
