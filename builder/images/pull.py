"""Pulls an image by the docker program, and turns what went wrong into one sentence."""

import os
import sys
import tempfile
import time

from builder.diagnosis.known_errors import known_error, reports
from builder.errors import Code, MissingToolError
from builder.images.registry import VARIABLE, Reference
from builder.log import print_line
from builder.process import Limits, describe_limit, run_contained
from builder.progress.display import clock

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
    registry, _, name = Reference.parse(source).name.partition("/")
    message = " ".join(message.split()).removeprefix("Error response from daemon: ")
    known = next((each for each in _REFUSALS if reports(each, message)), "")
    cause = known_error(known).cause if known else "the Docker engine refuses"
    hints = [known_error(known).hint] if known else []
    mirror = f"name a mirror of {Reference.parse(image).registry} in {VARIABLE}"
    return MissingToolError(
        f"{name} cannot be pulled from {registry}: {cause} ({message})",
        _REFUSALS.get(known, Code.ENGINE_NOT_ANSWERING),
        where=image,
        hints=[*hints, mirror, _AGAIN],
    )
