"""Which base image a build gets, and whether it is here: cheap to ask, so that `auto` costs no start of the SDK."""

from __future__ import annotations

import fnmatch
import subprocess
from collections.abc import Sequence

from builder.matrix.plan import Build

#: The base image where `images:` in matrix.yaml names none.
DEFAULT_BASE = "debian:bookworm"

#: An engine that answers slower than this is no working engine, seconds.
PATIENCE = 20


def base_image(build: Build, images: Sequence[tuple[str, str]]) -> str:
    """The base image for a build: the first pattern that fits one of its cells decides."""
    cells = [str(cell) for cell in build.serves]
    return next((base for pattern, base in images if fnmatch.filter(cells, pattern)), DEFAULT_BASE)


def why_not_here(image: str) -> str | None:
    """Why an image cannot be used without pulling it, one sentence; None when it is here."""
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except FileNotFoundError:
        return "there is no docker program on PATH"
    except subprocess.TimeoutExpired:
        return f"the Docker engine did not answer in {PATIENCE} s"
    if answer.returncode == 0:
        return None
    said = answer.stderr.strip().splitlines()
    if any("No such image" in line for line in said):
        return f"the base image {image} is not on this machine"
    return f"the Docker engine does not answer: {said[-1] if said else 'no reason given'}"
