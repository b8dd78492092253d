"""What a published wheel needs, so that installers can use it and pages can show it."""

from __future__ import annotations

import re

from packaging.tags import parse_tag
from packaging.utils import parse_wheel_filename

from builder.errors import Code, UsageError
from builder.untrusted import JsonError, control_character, parse_json
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import any_linux
from builder.wheelfile.limits import MAX_REQUIREMENT

#: Bytes of the SBOM of a wheel. Reading JSON needs about twenty times as much memory.
MAX_SBOM = 12 * 2**20
#: Mistakes in versions of Requires-Dist that uv repairs, so that such a wheel can be installed: `>=1.2<2`, `>=1.19.*`,
#: `!=3.0*`, `>dev`, a comma at the end.
_REPAIRED = (
    (r"(?<=\d)\s*(?=[<>=!~])", ","),
    (r"([<>]=?\s*\d+(?:\.\d+)*)\.\*", r"\1"),
    (r"(?<=\d)\*", ".*"),
    (r">=?\s*dev\b", ""),
    (r",\s*(?=\)|;|$)", ""),
)


def check_usable(wheel: WheelFile) -> None:
    """Raise UsageError for a wheel that installers refuse, or that contradicts itself, and for a hostile one.

    The rest of a wheel is not read: installers unpack it as it is.
    """
    if fault := _fault(wheel):
        raise UsageError(fault, Code.WHEEL_DAMAGED, where=str(wheel.path))


def sbom_of(wheel: WheelFile) -> bytes:
    """The SBOM inside a wheel (PEP 770), or nothing; raises UsageError for one that is no JSON object."""
    folder = f"{wheel.dist_info}/sboms/"
    name = min((name for name in wheel.names if name.startswith(folder) and name.endswith(".json")), default="")
    if not name:
        return b""
    data = wheel.read(name)
    try:
        parse_json(data, lambda plain: {**plain}, limit=MAX_SBOM)
    except JsonError as error:
        raise UsageError(
            f"the SBOM {name} cannot be read: {error}", Code.WHEEL_DAMAGED, where=str(wheel.path)
        ) from None
    return data


def _fault(wheel: WheelFile) -> str:
    """The first fault, one sentence; empty: none."""
    wheel.read_dist_info("RECORD")  # raises
    if odd := next((name for name in wheel.names if control_character(name)), None):
        return f"the name of a file in the wheel has control characters: {odd[:100]!r}"
    try:
        wheel.read_dist_info("METADATA").decode()
    except UnicodeDecodeError as error:
        return f"METADATA is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
    if line := next((line for line in wheel.metadata.get_all("Requires-Dist", []) if not _readable(str(line))), None):
        return f"Requires-Dist of METADATA is not valid: {str(line)[:80]!r}"
    named = parse_wheel_filename(wheel.path.name)[3]
    written = frozenset(tag for line in wheel.tags for tag in parse_tag(line))
    if written and {*map(any_linux, named)}.isdisjoint(map(any_linux, written)):
        return f"WHEEL says {min(map(str, written))}, but the file name says {min(map(str, named))}"
    return ""


def _readable(line: str) -> bool:
    from builder.proofs.static.metadata import read_requirement  # noqa: PLC0415 - takes long

    if len(line) > MAX_REQUIREMENT:
        return False
    version, semicolon, marker = line.partition(";")
    for pattern, text in _REPAIRED:
        version = re.sub(pattern, text, version)
    return read_requirement(line) is not None or read_requirement(f"{version}{semicolon}{marker}") is not None
