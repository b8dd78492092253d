"""A registry on this machine, empty or with the images of CUDA 12.1 for the headline command."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import requests

from tests.conftest import PATIENCE, needs_images
from tests.fixtures.servers import debian_program, on_free_port

_DOCKER = "application/vnd.docker."
_MANIFEST = f"{_DOCKER}distribution.manifest.v2+json"

#: User and password of a registry that requires them, and bcrypt of the password.
LOGIN = ("someone", "secret")
_BCRYPT = "$2b$04$zriY6iUeRQHw/gOxtmY6ZeQCDPMzoLs./Wk4sc5ESpyhMJpT75Snm"


@dataclass(frozen=True)
class LocalRegistry:
    """A running registry."""

    address: str  # `127.0.0.1:PORT`
    log: Path  # its log, with a line for each request
    login: tuple[str, str] | None = None  # user and password that the registry requires, or None

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
            timeout=PATIENCE,
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
        started = requests.post(
            f"http://{self.address}/v2/{repository}/blobs/uploads/", auth=self.login, timeout=PATIENCE
        )
        url = f"{started.headers['Location']}&digest=sha256:{digest}"
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(data, bytes):
            answer = requests.put(url, data=data, headers=headers, auth=self.login, timeout=PATIENCE)
        else:
            with data.open("rb") as stream:
                answer = requests.put(url, data=stream, headers=headers, auth=self.login, timeout=PATIENCE)
        answer.raise_for_status()
        return {"digest": f"sha256:{digest}", "size": size}


@contextmanager
def running_registry(folder: Path, *, password: bool = False) -> Iterator[LocalRegistry]:
    """A registry that runs during the body, with its files below a folder; `password` is whether it requires LOGIN."""
    program = debian_program("docker-registry", "usr/bin/docker-registry", folder)
    config = folder / "registry.json"

    def argv_of(port: int) -> list[str | Path]:
        settings: dict[str, Any] = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
            "http": {"addr": f"127.0.0.1:{port}"},
        }
        if password:
            (folder / "passwords").write_text(f"{LOGIN[0]}:{_BCRYPT}\n")
            settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "passwords")}}
        config.write_text(json.dumps(settings))  # JSON is YAML
        return [program, "serve", config]

    with on_free_port(argv_of, folder / "registry.log", {"OTEL_TRACES_EXPORTER": "none"}) as port:
        yield LocalRegistry(f"127.0.0.1:{port}", folder / "registry.log", LOGIN if password else None)


def _docker(*arguments: str) -> bytes:
    return subprocess.run(["docker", *arguments], capture_output=True, check=True).stdout


TOOLKIT, PYTHONS = "buildfarm-cuda:12.1-rockylinux8", "buildfarm-pythons:local"

#: The images as Docker Hub and quay.io name them.
CUDA_IMAGE = "nvidia/cuda:12.1.1-devel-rockylinux8"
RUNTIME_IMAGE = "nvidia/cuda:12.1.1-base-ubuntu22.04"
PYTHONS_IMAGE = "pypa/manylinux_2_28_x86_64:2026.10.26-1"


def a_layer(folder: Path) -> Path:
    """A layer with one small file."""
    layer = folder / "small.tar"
    with tarfile.open(layer, "w") as tar:
        member = tarfile.TarInfo("file")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    return layer


@contextmanager
def running_cuda_registry(folder: Path) -> Iterator[LocalRegistry]:
    """The registry runs during the body; what the engine pulled from it is deleted afterwards."""
    needs_images(TOOLKIT, PYTHONS)
    with running_registry(folder) as registry:
        registry.publish_copy(TOOLKIT, CUDA_IMAGE, folder)
        registry.publish_copy(PYTHONS, PYTHONS_IMAGE, folder)
        registry.publish(RUNTIME_IMAGE, [a_layer(folder)])
        yield registry
    remove_images(registry.address)
    shutil.rmtree(folder)


def remove_images(address: str) -> None:
    """Delete what was pulled from a registry."""
    argv = ["docker", "image", "ls", "--no-trunc", "--format", "{{.ID}} {{.Repository}}"]
    rows = map(str.split, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines())
    if pulled := {identity for identity, repository in rows if repository.startswith(f"{address}/")}:
        subprocess.run(["docker", "image", "rm", "--force", *pulled], capture_output=True, check=True)
