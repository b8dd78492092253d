"""A registry with substitutes for the default images of torch 2.2 with CUDA 12.1, under the paths of the originals."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import needs_images
from tests.images.registry import LocalRegistry, running_registry

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
