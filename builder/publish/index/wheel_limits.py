"""Limits on what a wheel of a stranger may unpack to, checked before anything is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

from builder.errors import UsageError

#: The list of files of an archive, bytes: about 80,000 files.
_LIST = 2**23
#: METADATA, RECORD, an SBOM, bytes. Python unpacks no more of a file than its archive says.
_INFO = 2**25


def check_limits(wheel: Path) -> None:
    """Raise UsageError if reading the wheel's `.dist-info` needs an unreasonable amount of memory."""
    with wheel.open("rb") as stream:
        end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]  # the only way to ask before reading the list
    if end and end[zipfile._ECD_SIZE] > _LIST:  # type: ignore[attr-defined]
        raise UsageError(f"the list of files in this archive is larger than {_LIST} bytes")
    try:
        with zipfile.ZipFile(wheel) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise UsageError("the file is not a complete zip archive") from None
    for info in infos:
        if ".dist-info/" in info.filename and info.file_size > _INFO:
            raise UsageError(f"{info.filename} unpacks to {info.file_size} bytes; the limit is {_INFO}")
