"""A Docker engine made of a socket and a folder, and a `docker` program that knows it.

The socket speaks enough of the engine's HTTP API for the real docker SDK; the program records its calls.
"""

from __future__ import annotations

import io
import json
import os
import re
import socketserver
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

PROGRAM = """\
#!/bin/sh
"exec" "{python}" "$0" "$@"  # no space may stand in a first line's path; to Python this is a string
import json, os, pathlib, sys, urllib.parse
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
    if (root / "fails").exists():
        print((root / "fails").read_text())
        sys.exit(1)
    tag = arguments[arguments.index("--tag") + 1]
    (root / "images" / urllib.parse.quote(tag, safe="")).write_text("sha256:made")
elif arguments[0] == "pull":
    print("Error response from daemon: no such host", file=sys.stderr)
    sys.exit(1)
else:
    sys.exit(1)
"""


@dataclass
class FakeEngine:
    """What the fake knows and was asked.

    Attributes:
        root: its folder: `images/` (tag to id), `calls`, `Dockerfile` and `secret-*` of the last build.
        api: the API version it claims.
        files: path to text, in every image.
        containers: id to labels.
        removed: ids of the containers that were removed, in order.
        refuses: path to the status and words it refuses it with.

    """

    root: Path
    api: str = "1.41"
    files: dict[str, str] = field(default_factory=dict)
    containers: dict[str, dict[str, str]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add_image(self, tag: str, identity: str) -> None:
        (self.root / "images" / tag.replace("/", "%2F").replace(":", "%3A")).write_text(identity)

    def calls(self) -> list[list[str]]:
        path = self.root / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def answer(self, verb: str, target: str) -> tuple[int, Any]:
        """Status and body (bytes for an archive, else JSON) for a request."""
        url = urlsplit(target)
        path, query = re.sub(r"^/v[\d.]+", "", url.path), parse_qs(url.query)
        if path in self.refuses:
            status, words = self.refuses[path]
            return status, {"message": words}
        if path == "/version":
            return 200, {"Version": "20.10.24", "ApiVersion": self.api, "MinAPIVersion": "1.12"}
        if m := re.fullmatch(r"/images/(.+)/json", path):
            file = self.root / "images" / unquote(m[1]).replace("/", "%2F").replace(":", "%3A")
            return (200, {"Id": file.read_text()}) if file.exists() else (404, {"message": "No such image"})
        if path == "/containers/create":
            self.containers["probe"] = {}
            return 201, {"Id": "probe", "Warnings": []}
        if path == "/containers/json":
            wanted = json.loads(query["filters"][0])["label"]
            found = [i for i, own in self.containers.items() if all(_carries(own, label) for label in wanted)]
            return 200, [{"Id": identity} for identity in found]
        if m := re.fullmatch(r"/containers/([^/]+)/archive", path):
            text = self.files.get(query["path"][0])
            return (404, {"message": "no such file"}) if text is None else (200, _archive(query["path"][0], text))
        if m := re.fullmatch(r"/containers/([^/]+)(?:/json)?", path):
            if verb == "DELETE":
                del self.containers[m[1]]
                self.removed.append(m[1])
                return 204, None
            return 200, {"Id": m[1], "Config": {"Labels": self.containers[m[1]]}}
        return 500, {"message": f"the fake does not know {verb} {target}"}


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
    """A fake engine that DOCKER_HOST points at, with its `docker` alone on PATH."""
    fake = FakeEngine(folder)
    (folder / "images").mkdir()
    (folder / "buildx").touch()
    (folder / "bin").mkdir()
    program = folder / "bin" / "docker"
    program.write_text(PROGRAM.format(python=sys.executable, root=str(folder)))
    program.chmod(0o755)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(size)
            status, body = fake.answer(self.command, self.path)
            data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            if isinstance(body, bytes):
                self.send_header("X-Docker-Container-Path-Stat", "e30=")
            else:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = do_GET  # noqa: N815

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *args: Any) -> None:
            del args

    # A socket's path may have 107 bytes only, and pytest's folders are long.
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
