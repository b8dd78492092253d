"""An index behind web servers, and its writers in trouble: many at once, cut networks, kill -9 while readers read."""

import asyncio
import contextlib
import hashlib
import io
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event
from typing import BinaryIO

import httpx2
import pytest
import requests

from builder.commands.index.publish import PublishOutcome, publish_wheels
from builder.publish.index.levels import Level
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server import client as server
from builder.publish.server.app import finish_interrupted, make_app, open_socket
from builder.publish.server.app import run as run_server
from builder.publish.server.client import IndexServer
from builder.publish.server.tokens import Tokens
from builder.store import Store
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import PATIENCE, ROOT, Ran, run, wait_until
from tests.fixtures.killed import begin, context_of, enough, seeded
from tests.fixtures.servers import Server, clean_environment, debian_program, environment, on_free_port, running
from tests.real.publish.remote.test_server import CELL, ON_GPU, proven_wheel
from tests.real.test_serve import _certificate as certificate
from tests.real.test_serve import pip, uv_pip
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import checked, ready
from tests.unit.publish.server.client import form_of

#: Kills in a test; BUILDFARM_KILLS=50 makes longer tests.
KILLS = int(os.environ.get("BUILDFARM_KILLS", "20"))
SIZE = 4_000_000


def copy_slowly(source: Path, to: Path) -> None:
    """Copy a file as a slow disk does, so that kills hit the copy."""
    with source.open("rb") as reading, to.open("wb") as writing:
        while chunk := reading.read(SIZE // 16):
            writing.write(chunk)
            writing.flush()
            time.sleep(0.01)


def publish_here(root: Path, store: Path, wheels: Sequence[Path], begun: Connection) -> None:
    """`buildfarm publish --require none`, which starts faster without the command line."""
    shutil.copyfile = copy_slowly  # type: ignore[assignment]
    begun.send(None)
    results = publish_wheels(Repository(Folder(root)), wheels, Store(store), [Level.NONE])
    assert all(result.outcome is not PublishOutcome.REFUSED for result in results)


def read_until(stop: Event, root: Path) -> int:
    """Compare every wheel that a page lists with its hash, again and again; return how many were read."""
    repository, known, rounds = Repository(Folder(root)), set[str](), 0
    while not stop.is_set() or not rounds:
        rounds += 1
        for path in repository.paths():
            for project in repository.projects_of(path):
                for entry in repository.listed(project, path):
                    if entry.path not in known:
                        assert hashlib.sha256((root / entry.path).read_bytes()).hexdigest() == entry.sha256
                        metadata = (root / f"{entry.path}.metadata").read_bytes()
                        assert hashlib.sha256(metadata).hexdigest() == entry.metadata_sha256
                        known.add(entry.path)
        time.sleep(0.002)
    return len(known)


def test_a_killed_publish_leaves_nothing_half_seen(tmp_path: Path) -> None:
    seed, context = seeded(), context_of(__name__)
    root, store = tmp_path / "index", tmp_path / "store"
    repository = Repository(Folder(root))

    wheels: list[Path] = []

    def start(kill: int) -> BaseProcess:
        if kill % 2 == 0:  # the next `publish` gets the same wheels: it must not keep half a file of a killed one
            shutil.rmtree(tmp_path / "wheels", ignore_errors=True)
            files = {"x.bin": seed.randbytes(SIZE)}
            wheels[:] = [
                pure_wheel(tmp_path / "wheels", f"my_ext{one}", f"{kill}.0+cu13{one}", files) for one in range(2)
            ]
        return begin(context, publish_here, root, store, wheels)[0]

    first, started = start(0), time.monotonic()
    first.join()
    duration = time.monotonic() - started
    kills, interrupted, stop = 0, 0, Event()
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read_until, stop, root)
        try:
            while not enough(kills, interrupted, wanted=KILLS, of=KILLS // 5 + 1):
                kills += 1
                process = start(kills)
                time.sleep(seed.random() * duration)
                process.kill()
                process.join()
                interrupted += bool(repository.objects.names("pending"))
                if kills % 3 == 0:  # the other kills hit an index with more than one interrupted change
                    assert checked(repository).faults == ()
            start(kills + kills % 2 + 2).join()
        finally:
            stop.set()
        assert reader.result() > 2
    check = checked(repository)
    assert check.faults == ()
    assert checked(repository).finished == ()
    listed = {entry.filename for project in repository.projects() for entry in repository.listed(project)}
    assert {wheel.name for wheel in wheels} <= listed
    print(f"{kills} kills, {interrupted} during a change, {check.wheels} wheels")


DOWNLOADS, UPLOADS, PUBLISHED = 500, 50, 10


async def _upload(client: httpx2.AsyncClient, auth: tuple[str, str], wheel: Path) -> int:
    files = {"content": (wheel.name, wheel.read_bytes())}
    response = await client.post("/legacy/", data=form_of(wheel), files=files, auth=auth)
    return response.status_code


async def _get(client: httpx2.AsyncClient, url: str) -> httpx2.Response:
    """As pip and uv do: once more if the server has closed the idle connection, before it answered anything."""
    try:
        return await client.get(url, headers={"accept": JSON})
    except httpx2.RemoteProtocolError as error:
        if "without sending a response" not in str(error):
            raise
        return await client.get(url, headers={"accept": JSON})


async def _download(client: httpx2.AsyncClient, number: int) -> str:
    """Download one of the listed wheels, and compare it with its hash."""
    page = (await _get(client, f"/{('simple', 'cu130')[number % 2]}/my-ext/")).json()
    file = page["files"][number % len(page["files"])]
    wheel = await _get(client, f"/simple/my-ext/{file['url']}")
    metadata = await _get(client, f"/simple/my-ext/{file['url']}.metadata")
    assert (wheel.status_code, metadata.status_code) == (200, 200)
    assert hashlib.sha256(wheel.content).hexdigest() == file["hashes"]["sha256"]
    assert hashlib.sha256(metadata.content).hexdigest() == file["core-metadata"]["sha256"]
    return str(file["filename"])


async def _uploads(url: str, auth: tuple[str, str], wheels: list[Path]) -> list[int]:
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        return await asyncio.gather(*(_upload(client, auth, wheel) for wheel in wheels))


async def _downloads(url: str) -> list[str]:
    async with AsyncExitStack() as stack:
        # A client looks at all its connections for each request, so one client for all of them is slow.
        clients = [httpx2.AsyncClient(base_url=url, timeout=PATIENCE) for _ in range(DOWNLOADS // 25)]
        for client in clients:
            await stack.enter_async_context(client)
        return await asyncio.gather(*(_download(clients[number // 25], number) for number in range(DOWNLOADS)))


def test_downloads_and_uploads_by_two_servers_while_publishing(tmp_path: Path) -> None:
    root = tmp_path / "index"
    repository = Repository(Folder(root))
    repository.add(ready(tmp_path, version="0.1+cu130"))
    names = [("my_ext", "other_ext")[number % 2] for number in range(UPLOADS)]
    wheels = [pure_wheel(tmp_path, name, f"1.{number}+cu130") for number, name in enumerate(names)]
    with running(root) as server, running(root) as other, ThreadPoolExecutor(4) as clients:
        auth = ("__token__", Tokens(root).add("ci", ("upload",), None)[0])
        published = clients.submit(
            lambda: [repository.add(ready(tmp_path, version=f"2.{number}+cu130")) for number in range(PUBLISHED)]
        )
        uploaded = [
            clients.submit(asyncio.run, _uploads(url, auth, half))
            for url, half in ((server.url, wheels[::4] + wheels[1::4]), (other.url, wheels[2::4] + wheels[3::4]))
        ]
        downloaded = clients.submit(lambda: asyncio.run(_downloads(server.url)))
        assert published.result() == [True] * PUBLISHED
        assert [status for half in uploaded for status in half.result()] == [200] * UPLOADS
        assert len(set(downloaded.result())) > 1  # the downloads saw the index grow
        log = server.log.read_text()
        assert server.stop() == 0
    assert '" 500' not in log  # both servers write it
    check = checked(repository)
    assert (check.wheels, check.faults, check.finished) == (1 + UPLOADS + PUBLISHED, (), ())


def _serve(root: Path, begun: Connection) -> None:
    """A server in a process of its own, which starts faster than `buildfarm serve` and sends its port."""
    finish_interrupted(root)
    listening = open_socket("127.0.0.1", 0)
    begun.send(listening.getsockname()[1])
    run_server(make_app(root), listening)


def _try_upload(client: httpx2.Client, secret: str, wheel: Path) -> bool:
    try:
        response = client.post(
            "/legacy/",
            data=form_of(wheel),
            files={"content": (wheel.name, wheel.read_bytes())},
            auth=("__token__", secret),
        )
    except httpx2.TransportError:
        return False
    assert response.status_code == 200, response.text
    return True


def test_a_killed_server_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, temporary = tmp_path / "index", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    secret = Tokens(root).add("ci", ("upload",), None)[0]
    repository = Repository(Folder(root))
    seed, context = seeded(), context_of(__name__)
    known: set[str] = set()
    kills = killed_while_busy = 0
    while not enough(kills, killed_while_busy, wanted=KILLS, of=KILLS // 4 + 1):
        kills += 1
        files = {"x.bin": seed.randbytes(500_000)}
        wheels = [
            pure_wheel(tmp_path / "wheels", f"my_ext{index % 2}", f"{kills}.{index}", files) for index in range(8)
        ]
        process, port = begin(context, _serve, root)
        with (
            httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
            ThreadPoolExecutor(4) as threads,
        ):
            uploads = [threads.submit(_try_upload, client, secret, wheel) for wheel in wheels]
            first = uploads[seed.randrange(len(uploads))]
            wait_until(first.done, "the end of an upload")
            time.sleep(seed.random() * 0.05)
            process.kill()
            process.join()
        done = [upload.result() for upload in uploads]
        killed_while_busy += 0 < sum(done) < len(done)
        known |= {wheel.name for wheel, ok in zip(wheels, done, strict=True) if ok}
    finish_interrupted(root)
    check = checked(repository)
    assert (check.faults, check.finished) == ((), ())
    listed = {entry.filename for project in repository.projects() for entry in repository.listed(project)}
    assert known <= listed
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert left == [], "the uploads of killed servers had no name"


def buildfarm(*words: str | Path, env: Mapping[str, str]) -> Ran:
    return run(sys.executable, "-m", "builder", *words, env=env)


def secret(root: Path, scope: str = "prove") -> str:
    return Tokens(root).add(scope.replace(":", "-"), (scope,), None)[0]


def publish(url: str, wheels: Sequence[Path], tmp_path: Path, token: str, *options: str) -> Ran:
    env = {**clean_environment(tmp_path), "BUILDFARM_TOKEN": token}
    return buildfarm("publish", *wheels, "--to", url, "--store", tmp_path / "store", *options, env=env)


def test_published_through_a_server_and_installed(tmp_path: Path) -> None:
    root = tmp_path / "index"
    wheels = [proven_wheel(tmp_path / "dist", checks=ON_GPU), proven_wheel(tmp_path / "dist", "other")]
    with running(root) as index:
        token = secret(root)
        done = publish(index.url, wheels, tmp_path, token).ok()
        assert done.out.count("published  ") == 2
        assert f"pip install --extra-index-url {index.url}/cu130/torch2.11/ my-ext==1.0+cu130.torch2.11" in done.out
        again = publish(index.url, wheels, tmp_path, token)
        assert (again.code, again.out.count("already published")) == (0, 2), again.all
        assert index.log.read_text().count('POST /legacy/ HTTP/1.1" 200') == 2
        assert token not in index.log.read_text() + done.all + again.all
        env = clean_environment(tmp_path)
        for number, install in enumerate((pip, uv_pip)):
            install(f"{index.url}/cu130/", tmp_path / str(number), env, "--no-deps", "my-ext").ok()
            assert (tmp_path / str(number) / "my_ext" / "_C.so").is_file()
    repository = Repository(Folder(root))
    levels = {
        name: entry.farm and entry.farm.cells for name in repository.projects() for entry in repository.entries(name)
    }
    assert levels == {"my-ext": {CELL: "gpu"}, "other": {CELL: "cpu"}}
    check = checked(repository)
    assert (check.wheels, check.faults, check.finished) == (2, (), ())


def test_over_tls_with_a_token_in_netrc(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    root, wheel = tmp_path / "index", proven_wheel(tmp_path / "dist")
    with running(root, "--tls-cert", str(cert), "--tls-key", str(key), "--read-token-required") as index:
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine 127.0.0.1 login __token__ password {secret(root)}\n")
        netrc.chmod(0o600)
        env = {**clean_environment(tmp_path), "NETRC": str(netrc)}
        words = ("publish", wheel, "--to", index.url, "--store", tmp_path / "store")
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
            env.pop(name, None)
        refused = buildfarm(*words, env=env)
        assert refused.code == 4, refused.all
        assert "set SSL_CERT_FILE to a CA bundle" in " ".join(refused.all.split())
        buildfarm(*words, env={**env, "SSL_CERT_FILE": str(cert)}).ok()


def slowly(self: server.UploadBody) -> Iterator[bytes]:
    """The parts of a form, as a slow network takes them, so that kills hit the upload."""
    for chunk in plain_parts(self):
        yield chunk
        time.sleep(0.01)


plain_parts = server.UploadBody.__iter__


def send(url: str, token: str, wheels: Sequence[Path], store: Path, begun: Connection) -> None:
    """`buildfarm publish --to URL`, which starts faster without the command line."""
    os.environ["BUILDFARM_TOKEN"] = token
    server.UploadBody.__iter__ = slowly  # type: ignore[method-assign]
    begun.send(None)
    results = publish_wheels(IndexServer(url), wheels, Store(store), [Level.CPU])
    assert all(result.outcome is not PublishOutcome.REFUSED for result in results), results


def test_a_killed_publish_leaves_nothing_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, context = seeded(), context_of(__name__)
    root, store, temporary = tmp_path / "index", tmp_path / "store", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    repository = Repository(Folder(root))
    known: set[str] = set()
    kills = during = continued = 0
    with running(root) as index:
        token = secret(root)

        def start(wheels: Sequence[Path]) -> BaseProcess:
            return begin(context, send, index.url, token, wheels, store)[0]

        def made(kill: int) -> list[Path]:
            files: dict[str, str | bytes] = {"my_ext/data.bin": seed.randbytes(4_000_000)}
            return [proven_wheel(tmp_path / f"{kill}", "my_ext", f"{kill}.{one}", files=files) for one in range(2)]

        for number in (10_001, 10_002):  # the first run also waits for imports
            process, began = start(made(number)), time.monotonic()
            process.join()
            assert process.exitcode == 0
            duration = time.monotonic() - began
        while not enough(kills, during, wanted=KILLS, of=KILLS // 4 + 1):
            kills += 1
            wheels = made(kills)
            process = start(wheels)
            time.sleep(seed.random() * duration)
            process.kill()
            process.join()
            there = {entry.filename for entry in repository.entries("my-ext")}
            during += not {wheel.name for wheel in wheels} <= there
            assert known <= there
            if kills % 4 == 0:
                again = start(wheels)
                again.join()
                assert again.exitcode == 0
                known |= {wheel.name for wheel in wheels}
                continued += 1
        wait_until(lambda: not any(temporary.glob("buildfarm-upload-*")), "a server without what killed clients sent")
        assert index.stop() == 0
        assert '" 500' not in index.log.read_text()
    check = checked(repository)
    assert (check.faults, check.finished) == ((), ())
    assert known <= {entry.filename for entry in repository.listed("my-ext")}
    assert all(entry.farm and entry.farm.cells == {CELL: "cpu"} for entry in repository.entries("my-ext"))
    print(f"{kills} kills, {during} during an upload, {continued} continued, {check.wheels} wheels")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of an empty index, for clients in this process."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(server, "_RETRIES", server._RETRIES.new(backoff_factor=0.1))
    with running(tmp_path / "index") as started:
        monkeypatch.setenv("BUILDFARM_TOKEN", secret(started.root))
        yield started


def test_a_cut_network(index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, str | bytes] = {"my_ext/data.bin": os.urandom(3_000_000)}
    wheel, cuts = proven_wheel(tmp_path / "dist", files=files), [1, 2_000_000, 2_900_000]

    def cut(self: server.UploadBody) -> Iterator[bytes]:
        left = cuts.pop(0) if cuts else 2**62
        for chunk in plain_parts(self):
            yield chunk
            left -= len(chunk)
            if left < 0:  # the connection is closed in the middle of the form
                raise requests.ConnectionError("cut")

    monkeypatch.setattr(server.UploadBody, "__iter__", cut)
    (result,) = publish_wheels(IndexServer(index.url), [wheel], Store(tmp_path / "store"), [Level.CPU])
    assert result.outcome is PublishOutcome.PUBLISHED
    assert index.log.read_text().count('POST /legacy/ HTTP/1.1" 200') == 1
    assert not cuts
    check = checked(Repository(Folder(index.root)))
    assert (check.wheels, check.faults) == (1, ())


JSON = "application/vnd.pypi.simple.v1+json"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program nginx."""
    return debian_program("nginx", "usr/sbin/nginx", tmp_path_factory.mktemp("nginx"))


def documented(name: str, page: str = "serve.md") -> str:
    """A configuration of a page of docs/how-to."""
    content = (ROOT / "docs/how-to" / page).read_text()
    (text,) = re.findall(rf"<!-- nginx: {name} -->\n```nginx\n(.*?)```", content, re.DOTALL)
    return str(text)


@contextlib.contextmanager
def nginx_with(program: Path, folder: Path, http: str) -> Iterator[str]:
    """Run nginx with this text in its `http` block, in which port 8080 stands for the port of nginx."""
    folder.mkdir()
    user = "user root;" if os.getuid() == 0 else ""  # its workers must read the folders of the tests
    paths = " ".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = folder / "nginx.conf"

    def argv_of(port: int) -> list[str | Path]:
        text = http.replace("listen 8080", f"listen 127.0.0.1:{port}")
        config.write_text(
            f"{user} daemon off; pid {folder}/pid; error_log stderr;\n"
            f"events {{}}\nhttp {{ access_log off; {paths}\n{text}\n}}\n"
        )
        return [program, "-p", folder, "-c", config, "-e", "stderr"]

    with on_free_port(argv_of, folder / "log") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program simple-repository-server."""
    programs = environment(tmp_path_factory.mktemp("mirror") / "env", "simple-repository-server")
    return programs / "simple-repository-server"


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    return clean_environment(tmp_path)


def installs(url: str, folder: Path, env: Mapping[str, str], *words: str) -> None:
    """pip and uv install from this URL."""
    pip: tuple[str | Path, ...] = (sys.executable, "-m", "pip", "install", "--no-cache-dir", "--index-url", url)
    uv: tuple[str | Path, ...] = (find_uv(), "pip", "install", "--python", sys.executable, "--default-index", url)
    for number, argv in enumerate((pip, uv)):
        run(*argv, "--target", folder / str(number), *words, env=env).ok()
        assert (folder / str(number) / "my_ext.py").is_file()


@pytest.mark.network
def test_nginx_serves_the_folder(nginx: Path, mirror: Path, tmp_path: Path, env: Mapping[str, str]) -> None:
    root = tmp_path / "index"
    repository = Repository(Folder(root))
    repository.add(ready(tmp_path, version="1.0+cu130"))
    Tokens(root).add("ci", ("upload",), None)
    path = repository.find("my_ext-1.0+cu130-py3-none-any.whl").path
    config = documented("folder").replace("/srv/wheels", str(root))
    with nginx_with(nginx, tmp_path / "nginx", config) as url, httpx2.Client(base_url=url) as client:
        installs(f"{url}/cu130/", tmp_path / "a", env, "my_ext==1.0+cu130")
        for page in ("/simple/", "/cu130/my-ext/"):
            for accept, kind in ((JSON, JSON), (f"{JSON}, text/html;q=0.1", JSON), (BROWSER, "text/html")):
                answer = client.get(page, headers={"accept": accept})
                assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
                assert (answer.headers["vary"], answer.headers["cache-control"]) == ("Accept", "max-age=10")
        for page in ("/", "/projects/my-ext/", "/simple/my-ext/index.html"):
            assert client.get(page, headers={"accept": BROWSER}).headers["content-type"] == "text/html"
        assert client.get("/simple/my-ext").headers["location"] == "/simple/my-ext/"
        wheel = client.get("/" + path.replace("+", "%2B"))
        assert (wheel.content[:2], wheel.headers["content-type"]) == (b"PK", "application/octet-stream")
        for hidden in ("/records/my-ext/", "/.tokens/ci.json", "/pending/", "/files/../.tokens/ci.json", "/files/"):
            answer = httpx2.get(url + hidden)
            assert answer.status_code in {400, 404}, hidden
        assert b" 404 " in raw_get(url, "/files/%2e%2e/.tokens/ci.json")
        with mirrored_at(mirror, tmp_path, f"{url}/simple/") as mirrored:
            installs(mirrored, tmp_path / "b", env, "my_ext==1.0+cu130")


def raw_get(url: str, path: str, source: str = "127.0.0.1") -> bytes:
    """The answer to a path that is sent as it is, from an address of this machine."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=(source, 0)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return connection.makefile("rb").read()


class _Bucket(SimpleHTTPRequestHandler):
    """Has objects, and no pages of folders."""

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        return JSON if str(path).endswith(".json") else super().guess_type(path)

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        if self.path.endswith("/"):
            self.send_error(404)
            return None
        return super().send_head()


def test_nginx_in_front_of_a_bucket(nginx: Path, tmp_path: Path, env: Mapping[str, str]) -> None:
    """The pages have the dates of uploads, which limits by date need."""
    Repository(Folder(tmp_path / "bucket" / "team")).add(ready(tmp_path, version="1.0+cu130"))
    handler = partial(_Bucket, directory=str(tmp_path / "bucket"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as bucket:
        thread = threading.Thread(target=bucket.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{bucket.server_port}"
            config = documented("bucket", "object-stores.md").replace("https://wheels.s3.example", place)
            with nginx_with(nginx, tmp_path / "nginx", config) as url:
                cache = {"UV_NO_CACHE": "1", "UV_EXCLUDE_NEWER": "2100-01-01", "PIP_UPLOADED_PRIOR_TO": "2100-01-01"}
                installs(f"{url}/team/cu130/", tmp_path / "a", {**env, **cache}, "my_ext==1.0+cu130")
        finally:
            bucket.shutdown()
            thread.join()


def test_nginx_in_front_of_the_server(nginx: Path, tmp_path: Path, env: Mapping[str, str]) -> None:
    root = tmp_path / "index"
    big = pure_wheel(tmp_path, "my_ext", "1.0", {"my_ext.py": "", "big.bin": os.urandom(3_000_000)})
    with running(root) as server:
        config = documented("proxy").replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
        with nginx_with(nginx, tmp_path / "nginx", f"server {{ listen 8080;\n{config}\n}}") as url:
            secret = Tokens(root).add("ci", ("upload",), None)[0]
            words = ("upload", "--repository-url", f"{url}/wheels/legacy/", big)
            user = {"TWINE_USERNAME": "__token__", "TWINE_PASSWORD": secret}
            run(sys.executable, "-m", "twine", *words, env={**env, **user}).ok()
            refused = run(sys.executable, "-m", "twine", *words, env={**env, **user, "TWINE_PASSWORD": "x"})
            assert "HTTPError: 401 Unauthorized" in refused.all
            installs(f"{url}/wheels/simple/", tmp_path / "a", env, "my_ext")
            assert b"my_ext-1.0" in raw_get(url, "/wheels/simple/my-ext/", "127.0.0.7")
        line = ' 127.0.0.7:0 - "GET /simple/my-ext/ HTTP/'
        wait_until(lambda: line in server.log.read_text(), f"in the log of the server:{line}")


@contextlib.contextmanager
def mirrored_at(program: Path, folder: Path, url: str) -> Iterator[str]:
    """simple-repository-server in front of an index; yields the URL of its pages."""
    argv: list[str | Path] = [program, "--host", "127.0.0.1", "--stream-http-resources", url]
    with on_free_port(lambda port: [*argv, "--port", str(port)], folder / "mirror.log") as port:
        yield f"http://127.0.0.1:{port}/simple/"


@pytest.mark.network
def test_a_mirror_in_front_of_the_server(mirror: Path, tmp_path: Path, env: Mapping[str, str]) -> None:
    root = tmp_path / "index"
    for version in ("1.0+cu124", "1.0+cu130"):
        Repository(Folder(root)).add(ready(tmp_path, version=version, proven=False))
    with running(root) as server, mirrored_at(mirror, tmp_path, f"{server.url}/cu124/") as url:
        installs(url, tmp_path / "a", env, "my_ext")
        assert (tmp_path / "a/0/my_ext-1.0+cu124.dist-info").is_dir()
        log = server.log.read_text()
        assert '"GET /cu124/my-ext/ HTTP/1.1" 200' in log
        assert '.whl.metadata HTTP/1.1" 200' in log
