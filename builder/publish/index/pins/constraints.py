"""Pins in a constraints file for pip."""

from __future__ import annotations

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.publish.index.pins.pins import Pins, without_credentials


def pin_constraints(text: str, pins: Pins) -> str:
    """The text of a constraints file with the pins and the lines of their indexes; other lines stay.

    For pip, all indexes are one pool. A version with a local part exists on no public index, so the version is enough
    to name the wheel. A version without a local part is pinned by the wheel's URL and hash.
    """
    wheel = str(pins.requirement) if pins.version.local else f"{pins.project} @ {without_credentials(pins.wheel)}"
    lines = text.splitlines()
    for url in filter(None, (pins.index, pins.torch_index)):
        option = f"--extra-index-url {without_credentials(url)}"
        if option not in lines:
            last = max((number for number, line in enumerate(lines, 1) if line.startswith("--")), default=0)
            lines.insert(last, option)
    for name, pin in ((pins.project, wheel), ("torch", str(pins.torch))):
        lines = _with(lines, name, pin)
    return "\n".join(lines) + "\n"


def _with(lines: list[str], name: str, pin: str) -> list[str]:
    """The lines with the pin in place of the first line about this project that has no marker, or at the end."""
    places = [number for number, line in enumerate(lines) if _is_about(line, name)]
    if not places:
        return [*lines, pin]
    lines = [pin if number == places[0] else line for number, line in enumerate(lines)]
    return [line for number, line in enumerate(lines) if number not in places[1:]]


def _is_about(line: str, name: str) -> bool:
    try:
        requirement = Requirement(line.split(" #", maxsplit=1)[0])
    except InvalidRequirement:
        return False
    return canonicalize_name(requirement.name) == name and requirement.marker is None
