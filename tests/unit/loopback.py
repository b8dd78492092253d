"""A package index on this machine with small wheels: a torch of a few lines, and the packages that a build needs."""

import base64
import contextlib
import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from builder.matrix.axes import Python

#: The Python that runs these tests.
PYTHON = Python(sys.version_info.major, sys.version_info.minor)


def pure_wheel(
    folder: Path,
    project: str,
    version: str,
    files: Mapping[str, str | bytes] | None = None,
    *,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    requires_python: str = "",
    pure: bool = False,
    meta_version: str = "",
) -> Path:
    """Write a wheel that pip and uv can install; without `files` it holds one empty module.

    METADATA may have another version than the file name. `pure` is `Root-Is-Purelib`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{project}-{version}-{tag}.whl"
    info = f"{project}-{version}.dist-info"
    members: dict[str, str | bytes] = dict(files or {f"{project}.py": ""})
    headers = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {meta_version or version}"]
    headers += [f"Requires-Python: {requires_python}"] if requires_python else []
    headers += [f"Requires-Dist: {line}" for line in requires]
    members[f"{info}/METADATA"] = "\n".join([*headers, ""])
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {tag}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, f"{info}/RECORD": record_of(members, f"{info}/RECORD")}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if content[:2] in ("#!", b"#!") else 0o100644) << 16
            archive.writestr(entry, content)
    return path


def w0(folder: Path, name: str, version: str, tag: str, files: Mapping[str, bytes], **facts: Any) -> Path:
    """A wheel as people reported it, with these files; `facts` are of `pure_wheel`."""
    return pure_wheel(folder, name, version, files, tag=tag, **facts)


def record_of(members: Mapping[str, str | bytes], itself: str) -> str:
    """RECORD of these files."""
    lines = []
    for name, content in members.items():
        data = content.encode() if isinstance(content, str) else content
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{itself},,\n"])


@dataclass
class PackageIndex:
    """Wheels by channel, served at `<url>/<channel>/simple/`; buildfarm uses the channel `default`."""

    root: Path
    url: str = ""
    requested: list[str] = field(default_factory=list)
    #: What clients sent as `Authorization`, by path.
    logins: dict[str, str] = field(default_factory=dict)
    #: The sha256 that the page states, by file.
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def default(self) -> str:
        """The value of UV_DEFAULT_INDEX."""
        return f"{self.url}/default/simple"

    @property
    def torch_index(self) -> str:
        """The value of `torch_index` in a matrix."""
        return f"{self.url}/whl/{{variant}}/simple"

    def add(self, project: str, version: str, *, channel: str = "default", requires: Sequence[str] = ()) -> None:
        """Add an empty distribution."""
        pure_wheel(self.root / channel, project, version, requires=requires)

    def add_torch(self, version: str, cuda: str, *, channel: str = "default", libraries: Path | None = None) -> None:
        """Add a torch; `cuda` is empty for a CPU build, `libraries` is a folder with its lib/*.so."""
        kind = repr(cuda) if cuda else "None"
        files: dict[str, str | bytes] = {
            "torch/__init__.py": "from torch import cuda, version\n__version__ = version.__version__\n",
            "torch/version.py": (
                f"from typing import Optional\n__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {kind}\n"
            ),
            "torch/cuda/__init__.py": "def is_available():\n    return False\n\n\ndef device_count():\n    return 0\n",
        }
        for library in sorted(libraries.glob("*.so")) if libraries else ():
            files[f"torch/lib/{library.name}"] = library.read_bytes()
        pure_wheel(self.root / channel, "torch", version, files)


class Quiet(BaseHTTPRequestHandler):
    """A handler that prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


class Handler(Quiet):
    """The HTTP handler of an index; each index has its own subclass."""

    index: PackageIndex

    def do_GET(self) -> None:
        self.index.requested.append(self.path)
        self.index.logins[self.path] = self.headers.get("Authorization", "")
        path = unquote(self.path).strip("/")
        channel, simple, project = path.partition("/simple/")
        body: bytes | None = None
        if simple:
            name = project.replace("-", "_")
            files = [
                *(self.index.root / channel).glob(f"{name}-*.whl"),
                *(self.index.root / channel).glob(f"{name}-*.gz"),
            ]
            digests = {name: f"#sha256={digest}" for name, digest in self.index.digests.items() if digest}
            links = "".join(
                f'<a href="/{channel}/{name}{digests.get(name, "")}">{name}</a>'
                for name in sorted(f.name for f in files)
            )
            body = f"<!DOCTYPE html><html><body>{links}</body></html>".encode() if files else None
        elif (self.index.root / path).is_file():
            body = (self.index.root / path).read_bytes()
        self.send_response(404 if body is None else 200)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", "text/html" if simple else "application/octet-stream")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's


@contextlib.contextmanager
def served(root: Path) -> Iterator[PackageIndex]:
    """Serve the index of a folder while the body runs."""
    index = PackageIndex(root)
    with serving(type("OwnHandler", (Handler,), {"index": index})) as address:
        index.url = f"http://{address}"
        yield index


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve HTTP on this machine while the body runs; yields host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def only(index: PackageIndex, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv use this index only, and no settings of this machine."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.default)
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


def toolkit(root: Path, version: str = "13.0.88") -> Path:
    """Write a CUDA toolkit whose nvcc prints its version and does nothing else."""
    nvcc = root / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version.rpartition('.')[0]}, V{version}'\n")
    nvcc.chmod(0o755)
    return root
