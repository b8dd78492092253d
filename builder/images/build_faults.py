"""Why an image could not be made, from what buildx printed: no network, no disk, or a step's own complaint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError

#: What the programs of a step complain of, after the step's number and clock: pip, apt, dnf, our own checks. And
#: BuildKit's own complaint, which repeats the step's whole command.
_COMPLAINTS = re.compile(r"#\d+ [\d.]+ (?:ERROR|E|[Ee]rror): (.+)"), re.compile(r"(?:#\d+ )?(?:ERROR|error): (.+)")

#: How they tell of a network that is not there.
_NO_NETWORK = re.compile(
    r"Failed to establish a new connection|Failed to resolve|Temporary failure resolving|Could not resolve"
    r"|Name or service not known|Network is unreachable|Unable to connect to|Could not connect to"
    r"|Connection (?:refused|reset|aborted|broken|failed|timed out)|[Rr]ead timed out|Remote end closed connection"
    r"|error sending request|dns error|error reading a body from connection|Curl error \((?:6|7|28|56)\)"
)

#: pip tries again by itself; only its last try says that it gave up.
_RETRY = re.compile(r"Retrying \(Retry\(total=(\d+),")

_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)


def image_fault(lines: Sequence[str], *, tag: str, log: Path) -> FarmError:
    """The sentence for a failed `docker buildx build` that printed these lines; `log` holds them."""
    hints = [f"the whole output is in {log}"]
    said = [[found[1] for line in lines if (found := pattern.match(line))] for pattern in _COMPLAINTS]
    last = next((complaints[-1][:300] for complaints in said if complaints), "buildx gave no reason")
    if any(_NO_SPACE.search(line) for line in lines):
        return BuildError(
            "the disk of the Docker engine is full; the image was not made",
            stage="environment",
            log=log,
            where=tag,
            hints=["`docker system df` tells what fills it", *hints],
        )
    if words := _lost(lines):
        return MissingToolError(
            f"the image could not be made for want of network: {words}",
            where=tag,
            hints=[
                "UV_DEFAULT_INDEX or PIP_INDEX_URL, and the proxy's variables, must name what a container here reaches",
                *hints,
            ],
        )
    return BuildError(f"the image could not be made: {last}", stage="environment", log=log, where=tag, hints=hints)


def _lost(lines: Sequence[str]) -> str:
    """The first words about a network that is not there; empty when there are none."""
    for line in lines:
        if found := _NO_NETWORK.search(line):
            retry = _RETRY.search(line)
            if retry is None:
                return re.sub(r"^#\d+ (?:[\d.]+ )?(?:W: |E: |ERROR: |Err:\S+ )?", "", line).strip()[:300]
            if retry[1] == "0":
                return f"{found[0]} ({line.rpartition(': ')[2].strip()})"
    return ""
