"""Registries: image names, the mirrors that images are taken from, and the digests of base images (buildfarm.lock)."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import Code, UsageError
from builder.store import write_atomic

#: Environment variable with mirrors, `docker.io=registry.example/mirror quay.io=registry.example/mirror`.
VARIABLE = "BUILDFARM_REGISTRIES"
#: One of them: the host of a registry with its port, and host and path of its mirror.
_MIRROR = re.compile(r"([A-Za-z0-9.-]+(?::[0-9]+)?)=([A-Za-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9._-]+)*)")

_DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Reference:
    """An image name, parsed as Docker does: `ubuntu` is `docker.io`, `library/ubuntu`, `latest`."""

    registry: str  # host of the registry, with its port
    repository: str  # path in the registry
    tag: str  # the tag; `latest` if the name has neither a tag nor a digest
    digest: str = ""  # the digest (`sha256:…`), or empty

    @classmethod
    def parse(cls, image: str) -> Reference:
        """Parse an image name; this does not fail, because the registry or Docker refuses an invalid name."""
        name, _, digest = image.partition("@")
        first, _, rest = name.partition("/")
        named = bool(rest) and ("." in first or ":" in first or first == "localhost")
        registry, path = (first, rest) if named else (_DOCKER_HUB, name)
        if registry == "registry-1.docker.io":  # the host that serves its API
            registry = _DOCKER_HUB
        repository, _, tag = path.partition(":")
        if registry == _DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, tag or ("" if digest else "latest"), digest)

    @property
    def name(self) -> str:
        """The complete name, `registry.example/team/cuda:12`."""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def located(image: str, mirrors: Mapping[str, str]) -> str:
    """The name under which an image is pulled: the same name, or its name in the mirror of its registry.

    `mirrors` maps a host such as `docker.io` to the host and path that has copies of its images.
    """
    reference = Reference.parse(image)
    mirror = mirrors.get(reference.registry)
    return replace(reference, registry=mirror).name if mirror else image


def read_mirrors(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The mirrors of BUILDFARM_REGISTRIES. Raises UsageError if the variable is invalid."""
    mirrors = {}
    for entry in environ.get(VARIABLE, "").split():
        if not (found := _MIRROR.fullmatch(entry)):
            raise UsageError(
                f"{entry!r} is not a mirror of a registry",
                Code.VALUE_INVALID,
                where=VARIABLE,
                hints=[
                    "write host=mirror without `https://`; separate two mirrors by a space:"
                    " docker.io=registry.example/hub quay.io=registry.example/quay"
                ],
            )
        mirrors[found[1]] = found[2]
    return mirrors


#: The lock file, next to matrix.yaml. It belongs under version control.
FILE = "buildfarm.lock"

_HEAD = """\
# The base images of rendered Dockerfiles, by digest. Written by `buildfarm render --lock`, which asks their registries.
version = 1

[images]
"""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def lock_path(matrix: Path) -> Path:
    """Path of the lock file of a matrix.yaml."""
    return matrix.parent / FILE


def read_lock(path: Path) -> dict[str, str]:
    """Image names and their digests (`sha256:…`); empty without a lock file. Raises UsageError for an invalid file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unreadable(path, f"is not valid TOML: {error}") from None
    if data.get("version") != 1:
        raise _unreadable(path, f"has version {data.get('version')!r}; this buildfarm reads version 1")
    images = data.get("images", {})
    for name, digest in images.items() if isinstance(images, dict) else [("images", images)]:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise _unreadable(path, f"`{name}` has no sha256 digest")
    return dict(images)


def write_lock(path: Path, images: Mapping[str, str]) -> None:
    """Write the lock file atomically, sorted, with one line for each image so that diffs are readable."""
    lines = (f"{json.dumps(name)} = {json.dumps(digest)}\n" for name, digest in sorted(images.items()))
    write_atomic(path, (_HEAD + "".join(lines)).encode())


def _unreadable(path: Path, what: str) -> UsageError:
    hint = "delete the file, then write a new one with `buildfarm render --lock`"
    return UsageError(f"the lock file {what}", Code.FILE_INVALID, where=str(path), hints=[hint])
