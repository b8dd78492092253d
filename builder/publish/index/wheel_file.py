"""Reads a wheel file for an index: its entry and its SBOM, and whether installers can use it."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import Code, UsageError
from builder.hashing import sha256_of
from builder.publish.index.entry import Entry
from builder.untrusted import JsonError, control_character, parse_json
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import any_linux, check_wheel_name
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
_LONGEST_REQUIRES_PYTHON = 500
#: The files beside a wheel have longer names, and a file system allows 255 bytes.
_LONGEST_NAME = 200
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.whl")


def check_file_name(name: str) -> None:
    """Raise UsageError for a file name that is no wheel's, or that leads out of a folder."""
    if not _FILE_NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            "only wheels can be published, with a file name of up to 200 characters", Code.WHEEL_MISLABELLED
        )
    check_wheel_name(name)


def read_entry(wheel: Path) -> tuple[Entry, bytes]:
    """The entry of a wheel, whose path is its file name, and the bytes of its METADATA.

    The upload time is now. Raises UsageError for a file that does not exist or cannot be read, for a file name that
    differs from the METADATA, and for a name or a Requires-Python that is not valid.
    """
    from builder.proofs.static.metadata import RELABEL  # noqa: PLC0415 - takes long

    if not wheel.is_file():
        raise UsageError("there is no such wheel", Code.NO_SUCH_FILE, where=str(wheel))
    check_wheel_name(wheel.name, str(wheel))
    with WheelFile(wheel) as archive:
        metadata, headers = archive.read_dist_info("METADATA"), archive.metadata
    # Bytes of a header that are no UTF-8 become U+FFFD.
    name, version, requires_python = (str(headers[key] or "") for key in ("Name", "Version", "Requires-Python"))
    try:
        named = (canonicalize_name(name, validate=True), Version(version))
    except ValueError as error:
        raise _damaged(wheel, f"this wheel cannot be read: {error}") from None
    if named != parse_wheel_filename(wheel.name)[:2]:
        raise UsageError(
            f"METADATA says {named[0]} {named[1]}, but the file name differs",
            Code.WHEEL_MISLABELLED,
            where=str(wheel),
            hints=[RELABEL],
        )
    try:  # installers read it on the page of the project, with that of every other wheel
        if len(requires_python) > _LONGEST_REQUIRES_PYTHON:
            raise InvalidSpecifier
        SpecifierSet(requires_python)
    except InvalidSpecifier:
        raise _damaged(wheel, f"Requires-Python of METADATA is not valid: {requires_python[:80]!r}") from None
    entry = Entry(
        filename=wheel.name,
        path=wheel.name,
        sha256=sha256_of(wheel),
        size=wheel.stat().st_size,
        uploaded=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        requires_python=requires_python,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
    return entry, metadata


def check_usable(wheel: WheelFile) -> None:
    """Raise UsageError for a wheel that installers refuse, or that contradicts itself, and for a hostile one.

    The rest of a wheel is not read: installers unpack it as it is.
    """
    wheel.read_dist_info("RECORD")  # raises
    if odd := next((name for name in wheel.names if control_character(name)), None):
        raise _damaged(wheel.path, f"the name of a file in the wheel has control characters: {odd[:100]!r}")
    try:
        wheel.read_dist_info("METADATA").decode()
    except UnicodeDecodeError as error:
        sentence = f"METADATA is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        raise _damaged(wheel.path, sentence) from None
    if line := next((line for line in wheel.metadata.get_all("Requires-Dist", []) if not _readable(str(line))), None):
        raise _damaged(wheel.path, f"Requires-Dist of METADATA is not valid: {str(line)[:80]!r}")
    named = parse_wheel_filename(wheel.path.name)[3]
    written = frozenset(tag for line in wheel.tags for tag in parse_tag(line))
    if written and {*map(any_linux, named)}.isdisjoint(map(any_linux, written)):
        sentence = f"WHEEL says {min(map(str, written))}, but the file name says {min(map(str, named))}"
        raise _damaged(wheel.path, sentence)


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
        raise _damaged(wheel.path, f"the SBOM {name} cannot be read: {error}") from None
    return data


def _damaged(wheel: Path, sentence: str) -> UsageError:
    return UsageError(sentence, Code.WHEEL_DAMAGED, where=str(wheel))


def _readable(line: str) -> bool:
    from builder.proofs.static.metadata import read_requirement  # noqa: PLC0415 - takes long

    if len(line) > MAX_REQUIREMENT:
        return False
    version, semicolon, marker = line.partition(";")
    for pattern, text in _REPAIRED:
        version = re.sub(pattern, text, version)
    return read_requirement(line) is not None or read_requirement(f"{version}{semicolon}{marker}") is not None
