"""Reads a wheel file for an index: its entry, and its METADATA."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.publish.index.entry import Entry
from builder.wheelfile.archive import WheelFile


def read_entry(wheel: Path, path: str = "") -> tuple[Entry, bytes]:
    """The entry of a wheel and the bytes of its METADATA; `path` is its path in the index.

    The upload time is the file's modification time. Raises UsageError for a file that does not exist or cannot be read,
    and for a file name that differs from the METADATA.
    """
    if not wheel.is_file():
        raise UsageError("there is no such wheel", where=str(wheel))
    try:
        project, version, _, _ = parse_wheel_filename(wheel.name)
    except ValueError as error:
        raise UsageError(f"this wheel cannot be read: {error}", where=str(wheel)) from None
    with WheelFile(wheel) as archive:
        metadata, headers = archive.read_dist_info("METADATA"), archive.metadata
    try:
        named = (canonicalize_name(headers["Name"] or ""), Version(headers["Version"] or ""))
    except ValueError as error:
        raise UsageError(f"this wheel cannot be read: {error}", where=str(wheel)) from None
    if named != (project, version):
        raise UsageError(f"METADATA says {named[0]} {named[1]}, but the file name differs", where=str(wheel))
    stat = wheel.stat()
    entry = Entry(
        filename=wheel.name,
        path=path or wheel.name,
        sha256=sha256_of(wheel),
        size=stat.st_size,
        uploaded=modified(stat),
        requires_python=str(headers["Requires-Python"] or ""),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
    return entry, metadata


def modified(stat: os.stat_result) -> str:
    """The modification time of a file, as PEP 700 writes an upload time."""
    return iso_time(datetime.fromtimestamp(stat.st_mtime_ns // 1000 / 1e6, UTC))


def iso_time(moment: datetime) -> str:
    """A UTC time as PEP 700 writes it: `2026-11-22T20:30:00.000000Z`."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
