"""What goes wrong between the docker SDK and its engine, as sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from docker.errors import APIError, DockerException

from builder.errors import MissingToolError

#: All that the SDK raises, and what it lets through of the library below it.
FAULTS = (DockerException, requests.exceptions.RequestException)

OTHER_WAY = "`--executor local` needs no container engine"


@contextmanager
def told(doing: str = "") -> Iterator[None]:
    """Raise the SDK's faults as MissingToolError: the engine refused what was asked, or went away meanwhile.

    `doing` is what the farm was about, for the second of them.
    """
    try:
        yield
    except FAULTS as fault:
        raise MissingToolError(_sentence(fault, doing), where="docker", hints=[OTHER_WAY]) from fault


def reason(fault: Exception) -> str:
    """The end of an SDK error: the engine's own words, or those that three wrappers of the connection hide."""
    if isinstance(fault, APIError) and fault.explanation:
        return str(fault.explanation)
    said = str(fault)
    nested = [single or double for single, double in re.findall(r"'([^']+)'\)|\"([^\"]+)\"\)", said)]
    words = nested[-1] if nested else said
    return re.sub(r".*(?:\w+Connection\w*\([^)]*\)|<[^>]*>): |\[Errno -?\d+\] ", "", words)


def _sentence(fault: Exception, doing: str) -> str:
    if doing and isinstance(fault, requests.exceptions.ConnectionError):
        return f"the Docker engine went away {doing}: {reason(fault)}"
    return f"the Docker engine refused: {reason(fault)}"
