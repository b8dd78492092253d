"""Parse the image facts of compat.yaml: NVIDIA's tags, pypa's Pythons, and Linux distributions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from builder.matrix.axes import Cuda, Platform, Python

#: NVIDIA builds `devel` on `runtime` on `base`, and the cuDNN images on these: a `devel` tag implies the others.
_DEVEL_TAG = re.compile(r"(\d+\.\d+\.\d+)-(?:cudnn\d*-)?devel-(\w+)")


@dataclass(frozen=True)
class ImageFacts:
    """Tags of NVIDIA's CUDA images of one CUDA."""

    #: The newest patch version with images.
    version: str
    #: Ubuntu releases with a `cudnn-devel` image.
    ubuntu: tuple[str, ...]
    #: Complete tags that existed when the facts were read; not a complete list.
    rhel_like: tuple[str, ...]

    def systems(self) -> dict[str, str]:
        """Return each distribution, as in tags, with the newest CUDA patch version that has a `devel` image on it."""
        found = {f"ubuntu{release}": self.version for release in self.ubuntu}
        for version, system in _devel_tags(self.rhel_like):
            found[system] = max(version, found.get(system, version), key=_order)
        return found


@dataclass(frozen=True)
class Distribution:
    """A Linux distribution of base images."""

    #: Its name in NVIDIA's tags: `rockylinux8`, `ubuntu22.04`.
    name: str
    #: Texts in an image's name that identify it.
    names: tuple[str, ...]
    #: Its package manager, `apt` or `dnf`.
    packages: str
    #: Version of its C library, such as `2.28`.
    glibc: str
    #: Major of its package `gcc`.
    default_gcc: int
    #: Majors of gcc in its packages, sorted.
    gcc: tuple[int, ...]

    def newest_gcc(self, oldest: int, newest: int) -> int | None:
        """Return the newest gcc major from `oldest` to `newest`, both included, or None."""
        return max((gcc for gcc in self.gcc if oldest <= gcc <= newest), default=None)


@dataclass(frozen=True)
class ManylinuxTag:
    """An old tag of a manylinux image, which is never deleted, with its Pythons."""

    image: str
    tag: str
    pythons: tuple[Python, ...]


@dataclass(frozen=True)
class ImageTable:
    """The image facts that do not depend on a CUDA toolkit."""

    #: The oldest glibc first.
    distributions: tuple[Distribution, ...]
    #: Pypa's old tags.
    frozen: tuple[ManylinuxTag, ...]
    #: Registry and path of pypa's images.
    registry: str
    #: current_tag, current_pythons: the newest tag of pypa's images, and the Pythons in it.
    current_tag: str
    current_pythons: tuple[Python, ...]
    #: cuda_registry, cuda_image, cudas: registry, name and CUDA versions of NVIDIA's manylinux images.
    cuda_registry: str
    cuda_image: str
    cudas: tuple[Cuda, ...]

    def distribution_of(self, image: str) -> Distribution | None:
        """Return the distribution named in an image name such as `nvidia/cuda:12.1.1-devel-rockylinux8`, or None."""
        name = image.lower()
        return next((d for d in self.distributions if any(word in name for word in d.names)), None)

    def pythons_image(self, python: Python, platform: Platform, image: str = "manylinux_2_28") -> str | None:
        """Return pypa's image with a Python: the current tag, else the newest old tag that has it, else None."""
        name = f"{self.registry}/{image}_{platform.removeprefix('linux_')}"
        if python in self.current_pythons:
            return f"{name}:{self.current_tag}"
        tags = [row.tag for row in self.frozen if row.image == image and python in row.pythons]
        return f"{name}:{max(tags)}" if tags else None

    def cuda_manylinux(self, cuda: Cuda, platform: Platform) -> str | None:
        """Return NVIDIA's manylinux image with that toolkit, or None. Its tag `latest` moves."""
        if cuda not in self.cudas:
            return None
        machine = platform.removeprefix("linux_")
        return f"{self.cuda_registry}/{self.cuda_image}_{machine}_cuda{cuda.major}_{cuda.minor}:latest"


def read_images(raw: dict[str, Any]) -> ImageTable:
    """Return the image facts of compat.yaml. A mistake in the file raises KeyError or ValueError."""
    manylinux, nvidia = raw["manylinux"], raw["manylinux_cuda"]
    distributions = (_distribution(name, row) for name, row in raw["distributions"]["rows"].items())
    return ImageTable(
        distributions=tuple(sorted(distributions, key=lambda d: (_order(d.glibc), d.name))),
        frozen=tuple(
            ManylinuxTag(
                image=row["image"],
                tag=row["tag"],
                pythons=tuple(map(Python.parse, row["python"])),
            )
            for row in manylinux["frozen"]["rows"]
        ),
        registry=manylinux["registry"],
        current_tag=manylinux["current"]["tag"],
        current_pythons=tuple(map(Python.parse, manylinux["current"]["python"])),
        cuda_registry=nvidia["registry"],
        cuda_image=nvidia["image"],
        cudas=tuple(map(Cuda.parse, nvidia["cuda"])),
    )


def _distribution(name: str, row: dict[str, Any]) -> Distribution:
    if row["packages"] not in ("apt", "dnf"):
        raise ValueError(f"distributions.{name}.packages: {row['packages']!r} is neither apt nor dnf")
    gcc = tuple(sorted(map(int, row["gcc"])))
    if int(row["default_gcc"]) not in gcc:
        raise ValueError(f"distributions.{name}: `default_gcc` must be one of the versions listed in `gcc`")
    return Distribution(name, tuple(row["names"]), row["packages"], row["glibc"], int(row["default_gcc"]), gcc)


def _devel_tags(tags: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for tag in tags:
        if found := _DEVEL_TAG.fullmatch(tag):
            yield found[1], found[2]


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
