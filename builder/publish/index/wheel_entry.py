"""Reads a wheel file for an index: its entry, and its METADATA."""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import Code, UsageError
from builder.hashing import sha256_of
from builder.proofs.static.metadata import RELABEL
from builder.publish.index.entry import Entry
from builder.wheelfile.archive import WheelFile

_LONGEST_REQUIRES_PYTHON = 500
#: The files beside a wheel have longer names, and a file system allows 255 bytes.
_LONGEST_NAME = 200
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.whl")


def check_file_name(name: str) -> None:
    """Raise UsageError for a file name that is no wheel's, or that leads out of a folder."""
    if not _FILE_NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            "only wheels can be published, with a file name of up to 200 characters", Code.WHEEL_NAME_INVALID
        )
    try:
        parse_wheel_filename(name)
    except ValueError as error:
        raise UsageError(str(error), Code.WHEEL_NAME_INVALID) from None


def read_entry(wheel: Path, path: str = "") -> tuple[Entry, bytes]:
    """The entry of a wheel and the bytes of its METADATA; `path` is its path in the index.

    The upload time is the file's modification time. Raises UsageError for a file that does not exist or cannot be read,
    for a file name that differs from the METADATA, and for a name or a Requires-Python that is not valid.
    """
    if not wheel.is_file():
        raise UsageError("there is no such wheel", Code.NO_SUCH_FILE, where=str(wheel))
    try:
        project, version, _, _ = parse_wheel_filename(wheel.name)
    except ValueError as error:
        raise UsageError(f"this wheel cannot be read: {error}", Code.WHEEL_DAMAGED, where=str(wheel)) from None
    with WheelFile(wheel) as archive:
        metadata, headers = archive.read_dist_info("METADATA"), archive.metadata
    try:
        named = (canonicalize_name(_text(headers, "Name"), validate=True), Version(_text(headers, "Version")))
    except ValueError as error:
        raise UsageError(f"this wheel cannot be read: {error}", Code.WHEEL_DAMAGED, where=str(wheel)) from None
    if named != (project, version):
        raise UsageError(
            f"METADATA says {named[0]} {named[1]}, but the file name differs",
            Code.WHEEL_MISLABELLED,
            where=str(wheel),
            hints=[RELABEL],
        )
    stat = wheel.stat()
    entry = Entry(
        filename=wheel.name,
        path=path or wheel.name,
        sha256=sha256_of(wheel),
        size=stat.st_size,
        uploaded=modified(stat),
        requires_python=_requires_python(headers, wheel),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
    return entry, metadata


def _text(headers: Message, name: str) -> str:
    """A header of METADATA, or ""; bytes that are no UTF-8 become U+FFFD."""
    return str(headers[name] or "")


def _requires_python(headers: Message, wheel: Path) -> str:
    """Requires-Python of METADATA. Installers read it on the page of the project, with that of every other wheel."""
    text = _text(headers, "Requires-Python")
    try:
        if len(text) > _LONGEST_REQUIRES_PYTHON:
            raise InvalidSpecifier
        SpecifierSet(text)
    except InvalidSpecifier:
        raise UsageError(
            f"Requires-Python of METADATA is not valid: {text[:80]!r}", Code.WHEEL_DAMAGED, where=str(wheel)
        ) from None
    return text


def modified(stat: os.stat_result) -> str:
    """The modification time of a file, as PEP 700 writes an upload time."""
    return iso_time(datetime.fromtimestamp(stat.st_mtime_ns // 1000 / 1e6, UTC))


def iso_time(moment: datetime) -> str:
    """A UTC time as PEP 700 writes it: `2026-11-22T20:30:00.000000Z`."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
