"""Whether images are on this machine: cheap to ask, so that `auto` costs no start of the SDK."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

#: An engine that answers slower than this is no working engine, seconds.
PATIENCE = 20


def why_not_here(images: Sequence[str]) -> str | None:
    """Why these images cannot be used without pulling one, a sentence; None when all of them are here."""
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", *images]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except FileNotFoundError:
        return "there is no docker program on PATH"
    except subprocess.TimeoutExpired:
        return f"the Docker engine did not answer in {PATIENCE} s"
    if answer.returncode == 0:
        return None
    said = answer.stderr.strip().splitlines()
    for line in said:
        if "No such image" in line:
            return f"the base image {line.rpartition('No such image: ')[2].strip()} is not on this machine"
    return f"the Docker engine does not answer: {said[-1] if said else 'no reason given'}"
