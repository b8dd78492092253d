"""A container registry on this machine for tests: Debian's `docker-registry`, and images to pull from it.

Docker accepts a registry on 127.0.0.0/8 without TLS.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import requests

from tests.conftest import lacking

_DOCKER = "application/vnd.docker."
_MANIFEST = f"{_DOCKER}distribution.manifest.v2+json"

#: User and password of a registry that requires them, and bcrypt of the password.
LOGIN = ("someone", "secret")
_BCRYPT = "$2b$04$zriY6iUeRQHw/gOxtmY6ZeQCDPMzoLs./Wk4sc5ESpyhMJpT75Snm"

#: Seconds to wait for the registry's first answer.
PATIENCE = 30


@dataclass(frozen=True)
class LocalRegistry:
    """A running registry.

    Attributes:
        address: `127.0.0.1:PORT`.
        process: the running program.
        log: its log, with a line for each request.
        login: user and password that the registry requires, or None.

    """

    address: str
    process: subprocess.Popen[bytes]
    log: Path
    login: tuple[str, str] | None = None

    def publish(self, image: str, layers: Sequence[Path], settings: dict[str, Any] | None = None) -> str:
        """Add an image that consists of these layers (tar files); returns its digest."""
        repository, _, tag = image.partition(":")
        described = [self._layer(repository, layer) for layer in layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": settings or {},
            "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in described]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {
                "mediaType": f"{_DOCKER}container.image.v1+json",
                **self._upload(repository, json.dumps(config).encode()),
            },
            "layers": [
                {"mediaType": f"{_DOCKER}image.rootfs.diff.tar.gzip", **descriptor} for _, descriptor in described
            ],
        }
        answer = requests.put(
            f"http://{self.address}/v2/{repository}/manifests/{tag}",
            data=json.dumps(manifest),
            headers={"Content-Type": _MANIFEST},
            auth=self.login,
            timeout=60,
        )
        answer.raise_for_status()
        return answer.headers["Docker-Content-Digest"]

    def publish_copy(self, source: str, image: str, folder: Path) -> str:
        """Add a copy of an image of the engine, as one layer that the engine does not have; returns its digest.

        The layer begins with a file of its own. Without it, the engine would find the layer of an earlier copy.
        """
        (described,) = json.loads(_docker("image", "inspect", source))
        container = _docker("create", source, "true").decode().strip()
        layer = folder / "layer.tar"
        try:
            with layer.open("wb") as stream:
                stream.write(tarfile.TarInfo(f"copied-{uuid4().hex}").tobuf())
                stream.flush()
                subprocess.run(["docker", "export", container], stdout=stream, check=True)
        finally:
            _docker("rm", container)
        settings = {key: described["Config"][key] for key in ("Env", "Labels", "User") if described["Config"].get(key)}
        try:
            return self.publish(image, [layer], settings)
        finally:
            layer.unlink()

    def _layer(self, repository: str, layer: Path) -> tuple[str, dict[str, Any]]:
        """Upload a layer; returns the digest of the tar file and the descriptor of the compressed file."""
        packed, whole = layer.with_suffix(".gz"), hashlib.sha256()
        with layer.open("rb") as plain, gzip.open(packed, "wb", compresslevel=1) as target:
            while block := plain.read(1 << 20):
                whole.update(block)
                target.write(block)
        try:
            return f"sha256:{whole.hexdigest()}", self._upload(repository, packed)
        finally:
            packed.unlink()

    def _upload(self, repository: str, data: bytes | Path) -> dict[str, Any]:
        """Upload a blob; returns its descriptor."""
        if isinstance(data, bytes):
            digest, size = hashlib.sha256(data).hexdigest(), len(data)
        else:
            with data.open("rb") as stream:
                digest, size = hashlib.file_digest(stream, "sha256").hexdigest(), data.stat().st_size
        started = requests.post(f"http://{self.address}/v2/{repository}/blobs/uploads/", auth=self.login, timeout=60)
        url = f"{started.headers['Location']}&digest=sha256:{digest}"
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(data, bytes):
            answer = requests.put(url, data=data, headers=headers, auth=self.login, timeout=600)
        else:
            with data.open("rb") as stream:
                answer = requests.put(url, data=stream, headers=headers, auth=self.login, timeout=600)
        answer.raise_for_status()
        return {"digest": f"sha256:{digest}", "size": size}


@contextmanager
def running_registry(folder: Path, *, password: bool = False) -> Iterator[LocalRegistry]:
    """A registry that runs during the body, with its files below a folder; `password` is whether it requires LOGIN."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings: dict[str, Any] = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": address},
    }
    if password:
        (folder / "passwords").write_text(f"{LOGIN[0]}:{_BCRYPT}\n")
        settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "passwords")}}
    (folder / "registry.json").write_text(json.dumps(settings))  # JSON is YAML
    log = folder / "registry.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [_program(folder), "serve", folder / "registry.json"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        _await(address, process, log)
        yield LocalRegistry(address, process, log, LOGIN if password else None)
    finally:
        process.kill()
        process.wait()


def _await(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            requests.get(f"http://{address}/v2/", timeout=5)
        except requests.ConnectionError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())


def _program(folder: Path) -> Path:
    """The program of Debian's package `docker-registry`; it is unpacked into the folder if it is not installed."""
    if found := shutil.which("docker-registry"):
        return Path(found)
    if shutil.which("apt-get") is None:
        lacking("there is no docker-registry program, and no apt-get to download it")
    unpacked = folder / "docker-registry"
    got = subprocess.run(
        ["apt-get", "-q", "download", "docker-registry"], cwd=folder, capture_output=True, text=True, check=False
    )
    packages = list(folder.glob("docker-registry_*.deb"))
    if not packages:
        lacking(f"apt-get cannot download docker-registry: {got.stderr.strip()}")
    subprocess.run(["dpkg-deb", "-x", packages[0], unpacked], check=True)
    return unpacked / "usr/bin/docker-registry"


def _docker(*arguments: str) -> bytes:
    return subprocess.run(["docker", *arguments], capture_output=True, check=True).stdout
