"""`buildfarm serve` with the clients that people use: pip, uv, twine, `uv publish`, pypi-simple."""

import http.client
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from pypi_simple import ACCEPT_HTML_ONLY, ACCEPT_JSON_ONLY, PyPISimple

from builder.formats import sha256_of
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server.tokens import Tokens
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import PATIENCE, Ran, lacking, run, wait_until
from tests.fixtures.servers import Server, clean_environment, running
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import ready

PIP, TWINE = (sys.executable, "-m", "pip"), (sys.executable, "-m", "twine")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of an empty index."""
    with running(tmp_path / "index") as server:
        yield server


#: Runs `buildfarm serve` with this time for running transfers after a signal, and for idle connections, seconds.
PROGRAM = """
from builder.publish.server import app
app._GRACE = app._IDLE_SECONDS = {}
from builder.__main__ import main
main()
"""


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Server]:
    """A server of an empty index that cuts no connection."""
    with running(tmp_path / "index", program=PROGRAM.format(600)) as server:
        yield server


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    return clean_environment(tmp_path)


def token(server: Server, scope: str = "upload", name: str = "ci") -> str:
    return Tokens(server.root).add(name, (scope,), None)[0]


def twine(server: Server, secret: str, wheel: Path, env: Mapping[str, str], *options: str) -> Ran:
    words = ("upload", "--verbose", "--repository-url", f"{server.url}/legacy/", *options)
    return run(*TWINE, *words, wheel, env={**env, "TWINE_USERNAME": "__token__", "TWINE_PASSWORD": secret}, timeout=300)


def uv_publish(server: Server, secret: str, wheel: Path, env: Mapping[str, str], *options: str) -> Ran:
    words = ("publish", "--publish-url", f"{server.url}/legacy/", *options)
    return run(find_uv(), *words, wheel, env={**env, "UV_PUBLISH_TOKEN": secret}, timeout=300)


def pip(url: str, target: Path, env: Mapping[str, str], *words: str) -> Ran:
    return run(*PIP, "install", "--no-cache-dir", "--target", target, "--index-url", url, *words, env=env, timeout=300)


def uv_pip(url: str, target: Path, env: Mapping[str, str], *words: str) -> Ran:
    argv = (find_uv(), "pip", "install", "--python", sys.executable, "--target", target, "--default-index", url)
    return run(*argv, *words, env=env, timeout=300)


def test_twine_and_uv_upload_what_pip_and_uv_install(server: Server, env: Mapping[str, str], tmp_path: Path) -> None:
    secret = token(server)
    by_twine = pure_wheel(tmp_path, "my_ext", "1.0+cu130", requires=["by-uv"])
    by_uv = pure_wheel(tmp_path, "by_uv", "2.0")
    twine(server, secret, by_twine, env).ok()
    uv_publish(server, secret, by_uv, env).ok()
    repository = Repository(Folder(server.root))
    assert [entry.sha256 for entry in repository.entries("my-ext")] == [sha256_of(by_twine)]
    assert [entry.sha256 for entry in repository.entries("by-uv")] == [sha256_of(by_uv)]
    for number, install in enumerate((pip, uv_pip)):
        install(f"{server.url}/simple/", tmp_path / str(number), env, "My_Ext==1.0+cu130").ok()
        assert (tmp_path / str(number) / "my_ext.py").is_file()
        assert (tmp_path / str(number) / "by_uv.py").is_file()
    pip(f"{server.url}/cu130/", tmp_path / "2", env, "--no-deps", "my-ext").ok()
    done = pip(f"{server.url}/cpu/", tmp_path / "3", env, "--no-deps", "my-ext")
    assert done.code != 0
    lines = server.log.read_text()
    assert 'POST /legacy/ HTTP/1.1" 200' in lines
    # The installers read METADATA first.
    assert f'{by_twine.name.replace("+", "%2B")}.metadata HTTP/1.1" 200' in lines
    assert secret not in lines


def said(ran: Ran) -> str:
    """What a program printed, as one line: uv wraps lines."""
    return " ".join(ran.all.split())


def test_what_uploaders_print(server: Server, env: Mapping[str, str], tmp_path: Path) -> None:
    secret = token(server)
    wheel = pure_wheel(tmp_path / "a", "my_ext", "1.0")
    other = pure_wheel(tmp_path / "b", "my_ext", "1.0", {"my_ext.py": "1"})
    sentence = "the index has a different wheel of this name"
    for upload in (twine, uv_publish):
        assert upload(server, secret, wheel, env).code == 0  # the second time, it is already published
        refused = upload(server, secret, other, env)
        assert refused.code != 0
        assert sentence in said(refused), refused.all
        refused = upload(server, "wrong", wheel, env)
        assert refused.code != 0
        assert "an upload needs a valid token" in said(refused), refused.all
    uv_publish(server, secret, wheel, env, "--check-url", f"{server.url}/simple/").ok()
    Tokens(server.root).revoke("ci")
    assert "an upload needs a valid token" in said(twine(server, secret, wheel, env))


def test_pypi_simple_reads_both_forms_of_the_pages(server: Server, tmp_path: Path) -> None:
    new = ready(tmp_path, version="1.0+cu130")
    repository = Repository(Folder(server.root))
    repository.add(new)
    repository.yank(new.wheel.name, "wrong results")
    for accept in (ACCEPT_JSON_ONLY, ACCEPT_HTML_ONLY):
        with PyPISimple(f"{server.url}/cu130/", accept=accept) as client:
            assert client.get_index_page().projects == ["my-ext"]
            (package,) = client.get_project_page("My_Ext").packages
            assert (package.version, package.is_yanked, package.yanked_reason) == ("1.0+cu130", True, "wrong results")
            assert package.digests == {"sha256": new.entry.sha256}
            assert "Name: my_ext" in client.get_package_metadata(package)
            client.download_package(package, tmp_path / "copy.whl", verify=True)
        assert (tmp_path / "copy.whl").read_bytes() == new.wheel.read_bytes()


def test_reading_by_token_over_tls(env: Mapping[str, str], tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    root = tmp_path / "index"
    with running(root, "--tls-cert", str(certificate), "--tls-key", str(key), "--read-token-required") as server:
        assert server.url.startswith("https://")
        Repository(Folder(root)).add(ready(tmp_path))
        url = f"{server.with_token(token(server, 'read'))}/simple/"
        trusting = {**env, "PIP_CERT": str(certificate), "SSL_CERT_FILE": str(certificate)}
        for number, install in enumerate((pip, uv_pip)):
            refused = install(f"{server.url}/simple/", tmp_path / "none", trusting, "my_ext")
            assert refused.code != 0
            install(url, tmp_path / str(number), trusting, "my_ext").ok()
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine 127.0.0.1 login __token__ password {token(server, 'read', 'netrc')}\n")
        netrc.chmod(0o600)
        pip(f"{server.url}/simple/", tmp_path / "4", {**trusting, "NETRC": str(netrc)}, "my_ext").ok()


def _certificate(folder: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        lacking("no openssl on this machine")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    extensions = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    options = ("-days", "2", "-subj", "/CN=localhost", *extensions)
    argv = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *options)
    assert run(*argv).code == 0
    return certificate, key


def test_a_signal_ends_the_server_after_running_transfers(patient: Server, tmp_path: Path) -> None:
    files = {"my_ext.bin": b"x" * 50_000_000}
    big = ready(tmp_path)
    wheel = pure_wheel(tmp_path / "big", "my_ext", "2.0", files)
    repository = Repository(Folder(patient.root))
    repository.add(big)
    path = repository.find(big.wheel.name).path
    (patient.root / path).unlink()
    shutil.copy(wheel, patient.root / path)
    connection = http.client.HTTPConnection("127.0.0.1", patient.port, timeout=PATIENCE)
    connection.request("GET", "/" + path)
    response = connection.getresponse()
    size = len(response.read(1_000_000))
    patient.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _refuses(patient.port), "a server that accepts no connection")
    assert size + len(response.read()) == wheel.stat().st_size
    connection.close()
    assert patient.process.wait(PATIENCE) == 0


def test_a_signal_cuts_transfers_that_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has a line for each, and there is no traceback; nothing of the upload is left."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with running(tmp_path / "index", program=PROGRAM.format(1)) as server:
        new = ready(tmp_path)
        repository = Repository(Folder(server.root))
        repository.add(new)
        path = repository.find(new.wheel.name).path
        with (server.root / path).open("r+b") as stream:
            stream.truncate(500_000_000)
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address) as uploading, socket.create_connection(address) as downloading:
            part = b'--b\r\nContent-Disposition: form-data; name="content"; filename="x-1.0-py3-none-any.whl"\r\n\r\nx'
            head = f"POST /legacy/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(server)}\r\n"
            head += "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 10000000\r\n\r\n"
            uploading.sendall(head.encode() + part + b"x" * 2_000_000)
            downloading.sendall(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert downloading.recv(10) == b"HTTP/1.1 2"
            wait_until(lambda: _temporary_files(server, temporary) == 1, "an upload that has begun")
            assert server.stop() == 0
            assert b"503" in uploading.recv(1000)
        assert not list(temporary.iterdir())
        assert server.process.stderr
        said = server.process.stderr.read()
        assert "Cancel 2 running task(s)" in said
        assert "Traceback" not in said
        lines = server.log.read_text()
        assert f'GET /{path.replace("+", "%2B")} HTTP/1.1" 200' in lines
        assert 'POST /legacy/ HTTP/1.1" 503' in lines


def _temporary_files(server: Server, folder: Path) -> int:
    """How many files of a folder the server has open; they have no name there."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in this moment
            count += str(link.readlink()).startswith(f"{folder}/")
    return count


def _refuses(port: int) -> bool:
    """Whether no program listens on a port of this machine any more."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the program stopped listening during the handshake: the next connection is refused
        return False
    return False


def test_a_damaged_form_writes_no_line_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path / "index") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {token(server)}", "Content-Type": "multipart/form-data; boundary=b"}
        connection.request("POST", "/legacy/", b"zzzz", headers)
        answer = connection.getresponse()
        assert (answer.status, b"Invalid multipart data" in answer.read()) == (400, True)
        connection.close()
        assert server.stop() == 0
        assert server.process.stderr
        assert server.process.stderr.read() == ""


def test_idle_connections_do_not_hold_the_server(patient: Server) -> None:
    with socket.create_connection(("127.0.0.1", patient.port)) as idle, socket.create_connection(idle.getpeername()):
        idle.sendall(b"GET /simple/ HTTP/1.1\r\nHost: x\r\n\r\n")
        idle.recv(10)
        assert patient.stop(signal.SIGINT) == 0, "it waits for no idle connection"


def test_behind_a_proxy(tmp_path: Path) -> None:
    """The log has the address that the proxy names."""
    with running(tmp_path / "index") as server:
        Repository(Folder(server.root)).add(ready(tmp_path))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("GET", "/simple/", headers={"X-Forwarded-For": "192.0.2.7"})
        response = connection.getresponse()
        assert (response.status, response.headers.get_all("X-Content-Type-Options")) == (200, ["nosniff"])
        connection.close()
        wait_until(lambda: ' 192.0.2.7:0 - "GET ' in server.log.read_text(), "a line in the log")
