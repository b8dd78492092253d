"""buildfarm.lock: the digest each base image had when it was last looked at. Beside matrix.yaml, kept in git."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from builder.errors import MissingToolError, UsageError
from builder.store import write_whole

FILE = "buildfarm.lock"

_HEAD = """\
# The base images of rendered Dockerfiles, by digest. Written by `buildfarm render --lock`, which asks their registries.
version = 1

[images]
"""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def lock_path(matrix: Path) -> Path:
    """The lock that belongs to a matrix.yaml."""
    return matrix.parent / FILE


def read_lock(path: Path) -> dict[str, str]:
    """Image name to digest (`sha256:…`); empty where there is no lock. Raises UsageError for what it cannot be."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unreadable(path, f"is no TOML: {error}") from None
    if data.get("version") != 1:
        raise _unreadable(path, f"is of version {data.get('version')!r}, and this buildfarm knows 1")
    images = data.get("images", {})
    for name, digest in images.items() if isinstance(images, dict) else [("images", images)]:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise _unreadable(path, f"`{name}` has no sha256 digest")
    return dict(images)


def write_lock(path: Path, images: Mapping[str, str]) -> None:
    """Write the lock whole, sorted, one line for each image so that a diff shows what moved."""
    lines = (f"{json.dumps(name)} = {json.dumps(digest)}\n" for name, digest in sorted(images.items()))
    write_whole(path, (_HEAD + "".join(lines)).encode())


def refresh_lock(path: Path, images: Iterable[str]) -> list[MissingToolError]:
    """Ask the registries what these tags are now and write it down; answers what could not be found out.

    Images that were not asked for, or whose registry was not to be had, keep the digest they had.
    """
    # requests and the docker SDK take a while to load, and reading a lock has no use for them.
    from builder.images.registry import find_digest  # noqa: PLC0415

    known = read_lock(path)
    problems = []
    for image in images:
        try:
            known[image] = find_digest(image)
        except MissingToolError as problem:
            problems.append(problem)
    write_lock(path, known)
    return problems


def _unreadable(path: Path, what: str) -> UsageError:
    return UsageError(
        f"the lock {what}", where=str(path), hints=["delete it; `buildfarm render --lock` writes a new one"]
    )
