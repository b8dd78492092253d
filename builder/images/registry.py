"""Registries: image names, mirrors, pulls by the docker program, and the digests of base images (buildfarm.lock)."""

import json
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from builder.diagnosis.known_errors import known_error, reports
from builder.errors import Code, MissingToolError, UsageError
from builder.log import print_line
from builder.process import Limits, describe_limit, run_contained
from builder.progress.display import clock
from builder.store import write_atomic

#: Environment variable with mirrors, `docker.io=registry.example/mirror quay.io=registry.example/mirror`.
VARIABLE = "BUILDFARM_REGISTRIES"
#: One of them: the host of a registry with its port, and host and path of its mirror.
_MIRROR = re.compile(r"([A-Za-z0-9.-]+(?::[0-9]+)?)=([A-Za-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9._-]+)*)")

_DOCKER_HUB = "docker.io"


def registry_and_path(image: str) -> tuple[str, str]:
    """The host of an image's registry, and its path there with tag or digest; `library/ubuntu:latest` for `ubuntu`.

    A name is read as Docker reads it. This does not fail: the registry or Docker refuses an invalid name.
    """
    name, at, digest = image.partition("@")
    first, _, rest = name.partition("/")
    named = bool(rest) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, rest) if named else (_DOCKER_HUB, name)
    if registry == "registry-1.docker.io":  # the host that serves its API
        registry = _DOCKER_HUB
    if registry == _DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return registry, f"{path}{'' if ':' in path or digest else ':latest'}{at}{digest}"


def located(image: str, mirrors: Mapping[str, str]) -> str:
    """The name under which an image is pulled: the same name, or its name in the mirror of its registry.

    `mirrors` maps a host such as `docker.io` to the host and path that has copies of its images.
    """
    registry, path = registry_and_path(image)
    return f"{mirrors[registry]}/{path}" if registry in mirrors else image


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


#: Time for one image. The engine waits forever for a connection that is open but sends nothing.
LIMITS = Limits(seconds=3600)

_AGAIN = "run the command again: images that are complete are not pulled again"
#: Why a pull can fail, by the ids of known_errors.yaml.
_REFUSALS = {
    "disk-full": Code.DISK_FULL,
    "registry-limit": Code.IMAGE_NOT_FOUND,
    "registry-missing": Code.IMAGE_NOT_FOUND,
    "registry-denied": Code.IMAGE_NOT_FOUND,
    "registry-unreachable": Code.NETWORK_UNREACHABLE,
}


def pull_image(image: str, source: str) -> None:
    """Pull an image from `source`, its own name or its name in a mirror; on a terminal, docker shows its progress.

    The engine stops the download when an interrupt ends this process. Raises MissingToolError, and Interrupted.
    """
    started, shows = time.monotonic(), sys.stderr.isatty()
    argv = ["docker", "pull", *([] if shows else ["--quiet"]), source]
    with tempfile.TemporaryFile() as errors, open(2 if shows else os.devnull, "wb", closefd=not shows) as out:
        ended = run_contained(argv, out, errors, owner="pull", limits=LIMITS)
        errors.seek(0)
        message = errors.read().decode(errors="replace")
    if ended.limit:
        message = f"timeout: docker {describe_limit(ended.limit, LIMITS)}"
    if ended.status or ended.limit:
        raise pull_error(image, source, message)
    print_line(f"pulled {image} ({clock(time.monotonic() - started)})")


def pull_error(image: str, source: str, message: str) -> MissingToolError:
    """The error for a pull of an image from `source` that failed with this message of the engine."""
    registry, name = registry_and_path(source)
    message = " ".join(message.split()).removeprefix("Error response from daemon: ")
    known = next((each for each in _REFUSALS if reports(each, message)), "")
    cause = known_error(known).cause if known else "the Docker engine refuses"
    hints = [known_error(known).hint] if known else []
    mirror = f"name a mirror of {registry_and_path(image)[0]} in {VARIABLE}"
    return MissingToolError(
        f"{name} cannot be pulled from {registry}: {cause} ({message})",
        _REFUSALS.get(known, Code.ENGINE_NOT_ANSWERING),
        where=image,
        hints=[*hints, mirror, _AGAIN],
    )


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
