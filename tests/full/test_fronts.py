"""Web servers in front of an index: nginx with the configurations of the documentation, and a mirror."""

import contextlib
import io
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import httpx2
import pytest

from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server.tokens import Tokens
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import PATIENCE, ROOT, run, wait_until
from tests.fixtures.servers import clean_environment, debian_program, environment, on_free_port, running
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import ready

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
