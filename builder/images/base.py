"""Base images: which distribution one is, and so which Python, compiler and C library a build in it meets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.errors import MissingToolError
from builder.images.engine import Engine
from builder.images.render import ImageSpec
from builder.matrix.axes import Python


@dataclass(frozen=True)
class Distribution:
    """What a release of a distribution ships.

    Attributes:
        python: its `python3`.
        gcc: the major version of its `g++`.
        glibc: its C library, in the words of uv's `--python-platform`, or the newest older one uv knows.

    """

    python: Python
    gcc: int
    glibc: str


#: By VERSION_CODENAME of os-release (packages.debian.org and packages.ubuntu.com: python3, g++, libc6).
DISTRIBUTIONS = {
    "bookworm": Distribution(Python(3, 11), 12, "manylinux_2_36"),
    "trixie": Distribution(Python(3, 13), 14, "manylinux_2_40"),
    "jammy": Distribution(Python(3, 10), 11, "manylinux_2_35"),
    "noble": Distribution(Python(3, 12), 13, "manylinux_2_39"),
}


@dataclass(frozen=True)
class Base:
    """A base image that is on this machine: its name, the engine's id of it, and what it ships."""

    name: str
    id: str
    ships: Distribution

    @property
    def spec(self) -> ImageSpec:
        """The image for builds that stands on it."""
        return ImageSpec(self.name, (self.ships.python,), self.id)


def find_base(engine: Engine, name: str) -> Base:
    """Look at a base image, pulling it if need be; raises MissingToolError if it cannot be had or used."""
    identity = engine.base_id(name)
    release = engine.read_file(name, "/usr/lib/os-release") or ""
    codename = re.search(r'^VERSION_CODENAME="?(\w+)', release, re.MULTILINE)
    if codename and (known := DISTRIBUTIONS.get(codename[1])):
        return Base(name, identity, known)
    what = f"the distribution {codename[1]}" if codename else "no distribution it can recognise"
    raise MissingToolError(
        f"the base image {name} holds {what}, for which buildfarm has no Dockerfile",
        where="images",
        hints=[f"name an image of {', '.join(sorted(DISTRIBUTIONS))} under `images:` in matrix.yaml"],
    )
