"""buildfarm.lock: the digests of the base images. The file is next to matrix.yaml and belongs under version control."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import Code, MissingToolError, UsageError
from builder.store import write_atomic

if TYPE_CHECKING:  # it loads slowly, and reading a lock file does not need it
    from builder.images.engine import Engine

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


def refresh_lock(path: Path, images: Iterable[str], engine: Engine) -> list[MissingToolError]:
    """Write the current digests of these tags, as registries or mirrors report them; returns an error for each failure.

    Other images in the file, and images whose registry could not be reached, keep their recorded digest.
    """
    if problem := engine.problem():
        return [problem]
    known, problems = read_lock(path), []
    for image in images:
        try:
            known[image] = engine.digest(image)
        except MissingToolError as failure:
            problems.append(failure)
    write_lock(path, known)
    return problems


def _unreadable(path: Path, what: str) -> UsageError:
    hint = "delete the file, then write a new one with `buildfarm render --lock`"
    return UsageError(f"the lock file {what}", Code.FILE_INVALID, where=str(path), hints=[hint])
