"""Compares the files of a wheel with its RECORD: installers do not, so a changed wheel would go unnoticed."""

from __future__ import annotations

import base64
import hashlib

from builder.wheelfile.archive import WheelContents

#: Hashes that the wheel format allows.
_HASHES = ("sha256", "sha384", "sha512")
#: RECORD cannot contain its own hash, and signatures are made after it.
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")


def record_fault(wheel: WheelContents) -> str:
    """The first difference between a wheel's files and its RECORD, one sentence; empty if they agree.

    Reads every file of the wheel. Raises DamagedWheelError.
    """
    unlisted = {f"{wheel.dist_info}/{name}" for name in _UNLISTED}
    rows = wheel.record_rows()
    for name in wheel.names:
        if name in unlisted:
            continue
        if name not in rows:
            return f"RECORD does not list {name}, so the wheel was changed after it was built"
        if reason := _hash_fault(wheel, name, rows[name]):
            return reason
    missing = sorted(set(rows) - unlisted - set(wheel.names))
    return f"the wheel lacks {missing[0]}, which RECORD lists" if missing else ""


def _hash_fault(archive: WheelContents, name: str, written: str) -> str:
    algorithm, _, wanted = written.partition("=")
    if algorithm not in _HASHES:
        return f"RECORD has no hash of {name}"
    with archive.open(name) as stream:
        digest = hashlib.file_digest(stream, algorithm).digest()  # type: ignore[arg-type]
    found = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    if found != wanted.rstrip("="):
        return f"{name} differs from its hash in RECORD, so the wheel was changed after it was built"
    return ""
