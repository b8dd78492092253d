"""A fake Docker engine: a socket that answers the real Docker SDK, and a `docker` program that records its calls."""

import io
import json
import os
import re
import socketserver
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from tests.conftest import PATIENCE

PROGRAM = """\
#!/bin/sh
"exec" "{python}" "$0" "$@"  # a path in the first line must not contain a space; to Python this line is a string
import json, os, pathlib, sys, time, urllib.parse
root = pathlib.Path({root!r})
arguments = sys.argv[1:]
with (root / "calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if arguments[:2] == ["context", "inspect"]:
    host = os.environ["DOCKER_HOST"]
    print(json.dumps([{{"Name": "default", "Endpoints": {{"docker": {{"Host": host}}}}}}]))
elif arguments == ["--version"]:
    print("Docker version 20.10.24")
elif arguments[:2] == ["buildx", "version"]:
    sys.exit(0 if (root / "buildx").exists() else 1)
elif arguments[:2] == ["buildx", "build"]:
    (root / "Dockerfile").write_text(pathlib.Path(arguments[-1], "Dockerfile").read_text())
    for number, argument in enumerate(arguments):
        if argument == "--secret":
            parts = dict(part.split("=", 1) for part in arguments[number + 1].split(","))
            (root / ("secret-" + parts["id"])).write_text(pathlib.Path(parts["src"]).read_text())
    while (root / "hangs").exists():
        time.sleep(0.05)
    if (root / "fails").exists():
        print((root / "fails").read_text())
        sys.exit(1)
    if "--tag" not in arguments:
        sys.exit(0)
    tag = arguments[arguments.index("--tag") + 1]
    (root / "images" / urllib.parse.quote(tag, safe="")).write_text("sha256:made")
elif arguments[0] == "exec":
    while (root / "hangs").exists():
        time.sleep(0.05)
    sys.exit((root / "fails").exists())
elif arguments[0] == "pull":
    name = urllib.parse.quote(arguments[-1], safe="")
    offered = root / "offered" / name
    message = offered.read_text() if offered.exists() else "manifest for x not found: manifest unknown"
    while message == "hangs":
        time.sleep(0.05)
    if message:
        sys.exit(f"Error response from daemon: {{message}}")
    (root / "images" / name).write_text(f"sha256:of {{arguments[-1]}}")
else:
    sys.exit(1)
"""


@dataclass
class FakeRun:
    """What a program in a container prints, and how it ends."""

    stdout: bytes = b""
    stderr: bytes = b""
    status: int = 0
    out_of_memory: bool = False
    endless: bool = False


@dataclass
class FakeEngine:
    """State and requests of the fake engine."""

    root: Path  # directory with `images/` (tag to id), `calls`, and `Dockerfile` and `secret-*` of the last build
    api: str = "1.41"  # the API version that it reports
    files: dict[str, str] = field(default_factory=dict)  # paths and texts of the files in every image
    containers: dict[str, dict[str, str]] = field(default_factory=dict)  # ids and labels of containers
    removed: list[str] = field(default_factory=list)  # ids of removed containers, in order
    #: URL paths and the status and message of their refusal.
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    container_output: str = ""  # what every container prints
    runs: list[FakeRun] = field(default_factory=list)  # what the next programs in attached containers do, in order
    created: list[dict[str, Any]] = field(default_factory=list)  # bodies of the requests that created containers
    #: Archives that were copied into containers, as names and members.
    put: list[dict[str, tarfile.TarInfo]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)  # what registries say about tags
    asked: list[str] = field(default_factory=list)  # tags whose digest was asked for
    disconnected: list[str] = field(default_factory=list)  # networks that containers were disconnected from
    started: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)
    state: dict[str, Any] = field(default_factory=dict)

    def add_image(self, tag: str, identity: str) -> None:
        (self.root / "images" / tag.replace("/", "%2F").replace(":", "%3A")).write_text(identity)

    def offer(self, image: str, error: str = "") -> None:
        """Let an image be pulled, or the pull fail with this message."""
        (self.root / "offered" / quote(image, safe="")).write_text(error)

    @property
    def pulled(self) -> list[str]:
        """The images of each call of `docker pull`."""
        return [call[-1] for call in self.calls() if call[0] == "pull"]

    def calls(self) -> list[list[str]]:
        path = self.root / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def output(self) -> Iterator[bytes]:
        """The frames of the next started program, as an attached client reads them."""
        if not self.started.wait(PATIENCE):
            return
        self.started.clear()
        fake_run = self.runs.pop(0) if self.runs else FakeRun()
        for kind, text in ((b"\1", fake_run.stdout), (b"\2", fake_run.stderr)):
            if text:
                yield kind + b"\0\0\0" + len(text).to_bytes(4, "big") + text
        if fake_run.endless:
            self.killed.wait(PATIENCE)
        self.state = {"ExitCode": 137 if fake_run.endless else fake_run.status, "OOMKilled": fake_run.out_of_memory}

    def answer(self, verb: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        """Status and body of the answer to a request; bytes for an archive, otherwise JSON."""
        url = urlsplit(target)
        path, query = re.sub(r"^/v[\d.]+", "", url.path), parse_qs(url.query)
        if path in self.refuses:
            status, message = self.refuses[path]
            return status, {"message": message}
        if path == "/version":
            return 200, {"Version": "20.10.24", "ApiVersion": self.api, "MinAPIVersion": "1.12"}
        if m := re.fullmatch(r"/images/(.+)/json", path):
            file = self.root / "images" / unquote(m[1]).replace("/", "%2F").replace(":", "%3A")
            return (200, {"Id": file.read_text()}) if file.exists() else (404, {"message": "No such image"})
        if m := re.fullmatch(r"/distribution/(.+)/json", path):
            self.asked.append(unquote(m[1]))
            digest = self.digests.get(self.asked[-1])
            return (200, {"Descriptor": {"digest": digest}}) if digest else (404, {"message": "manifest unknown"})
        if path == "/containers/create":
            self.created.append(json.loads(body))
            self.containers["probe"] = self.created[-1].get("Labels") or {}
            return 201, {"Id": "probe", "Warnings": []}
        if path == "/containers/json":
            wanted = json.loads(query["filters"][0])["label"]
            found = [i for i, own in self.containers.items() if all(_carries(own, label) for label in wanted)]
            return 200, [{"Id": identity} for identity in found]
        if m := re.fullmatch(r"/networks/([^/]+)(/disconnect)?", path):
            if m[2]:
                self.disconnected.append(m[1])
            return 200, {"Id": m[1], "Name": m[1]}
        if m := re.fullmatch(r"/containers/([^/]+)/?(\w*)", path):
            return self._container(verb, m[1], m[2], query, body)
        return 500, {"message": f"the fake engine does not support {verb} {target}"}

    def _container(
        self, verb: str, identity: str, what: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, Any]:
        """The answer to a request about one container."""
        if verb == "DELETE":
            del self.containers[identity]
            self.removed.append(identity)
            return 204, None
        if verb == "PUT":
            with tarfile.open(fileobj=io.BytesIO(body)) as tar:
                self.put.append({member.name: member for member in tar.getmembers()})
            return 200, None
        if what == "archive":
            text = self.files.get(query["path"][0])
            return (404, {"message": "no such file"}) if text is None else (200, _archive(query["path"][0], text))
        if what == "logs":
            return 200, b"\1\0\0\0" + len(self.container_output.encode()).to_bytes(
                4, "big"
            ) + self.container_output.encode()
        if what == "wait":
            return 200, {"StatusCode": 0}
        if what in ("start", "kill"):
            (self.started if what == "start" else self.killed).set()
            return 204, None
        return 200, {
            "Id": identity,
            "Config": {"Labels": self.containers[identity], "Tty": False},
            "HostConfig": {"LogConfig": {"Type": "json-file"}},
            "NetworkSettings": {"Networks": {"bridge": {"NetworkID": "net1"}}},
            "State": self.state,
        }


def _carries(labels: dict[str, str], wanted: str) -> bool:
    name, _, value = wanted.partition("=")
    return name in labels and (not value or labels[name] == value)


def _archive(path: str, text: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(Path(path).name)
        member.size = len(text.encode())
        tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@contextmanager
def running_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """A fake engine behind DOCKER_HOST, with its `docker` as the only program on PATH."""
    fake = FakeEngine(folder)
    (folder / "images").mkdir()
    (folder / "offered").mkdir()
    (folder / "buildx").touch()
    (folder / "bin").mkdir()
    program = folder / "bin" / "docker"
    program.write_text(PROGRAM.format(python=sys.executable, root=str(folder)))
    program.chmod(0o755)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            sent = self.body()
            if self.path.partition("?")[0].endswith("/attach"):
                self.hijack()
                return
            status, body = fake.answer(self.command, self.path, sent)
            data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            if isinstance(body, bytes):
                self.send_header("X-Docker-Container-Path-Stat", "e30=")
            else:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = do_PUT = do_GET  # noqa: N815

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def hijack(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.docker.raw-stream")
            self.end_headers()
            self.wfile.flush()
            self.close_connection = True
            with suppress(OSError):  # the client has disconnected
                for frame in fake.output():
                    self.wfile.write(frame)
                    self.wfile.flush()

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *args: Any) -> None:
            del args

    # The path of a socket has at most 107 bytes, and pytest's directories are long.
    descriptor = os.open(folder, os.O_RDONLY)
    address = f"/proc/{os.getpid()}/fd/{descriptor}/sock"
    with socketserver.ThreadingUnixStreamServer(address, Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{address}")
        monkeypatch.setenv("PATH", str(folder / "bin"))
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
            os.close(descriptor)
