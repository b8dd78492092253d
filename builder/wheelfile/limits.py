"""Limits on files of strangers: archives, wheels, libraries, metadata. Every reader uses these constants.

Each limit is far above what the largest wheels and source distributions on the package index need in 2026.
"""

from __future__ import annotations

import zipfile
from typing import IO, NamedTuple

#: Files and folders of an archive.
MAX_MEMBERS = 200_000
#: Bytes that all files of a source distribution, or of a wheel, unpack to.
MAX_SOURCE_BYTES = 4 * 2**30
MAX_WHEEL_BYTES = 16 * 2**30
#: A file may unpack to so many times its compressed size. Smaller files than MIN_RATIO_BYTES are not compared.
MAX_RATIO = 200
MIN_RATIO_BYTES = 16 * 2**20
#: Bytes of the list of files at the end of a zip archive.
MAX_FILE_LIST = 16 * 2**20
#: Bytes of a path in an archive, and of one component of it (Linux allows 255).
MAX_PATH, MAX_NAME = 1024, 255
#: Bytes of METADATA and WHEEL, and of any other file of `.dist-info`.
MAX_METADATA = 4 * 2**20
MAX_DIST_INFO = 32 * 2**20
#: Characters of a requirement. Python converts no number of more than 4300 digits.
MAX_REQUIREMENT = 2048
#: An ELF file: sections, bytes of their names, entries of the dynamic section or required versions, symbols, bytes of
#: one symbol's name and of all names. libtorch_cpu of torch 2.11 has 80,000 symbols.
MAX_SECTIONS = 4096
MAX_SECTION_NAMES = 2**16
MAX_DYNAMIC_ENTRIES = 65_536
MAX_SYMBOLS = 4_000_000
MAX_SYMBOL_NAME = 2**20
MAX_SYMBOL_NAMES = 2**29
#: Containers and entries of GPU code in one library.
MAX_GPU_CODES = 200_000


class EndRecord(NamedTuple):
    """The record at the end of a zip archive: bytes of the list of files, its length, and where the archive ends."""

    size: int
    files: int
    end: int


def end_record(stream: IO[bytes]) -> EndRecord | None:
    """The record at the end of a zip archive; None for any other file."""
    record = zipfile._EndRecData(stream)  # type: ignore[attr-defined]  # the only way to ask before reading the list
    if not record:
        return None
    size, count, comment, start = record[5], record[4], record[8], record[9]  # as zipfile's _ECD_ constants
    return EndRecord(size, count, start + 22 + len(comment))


def path_fault(name: str) -> str:
    """Why a path of an archive cannot be used, as the end of a sentence; empty for a usable path."""
    encoded = name.encode(errors="surrogateescape")
    if not name.strip("/") or "\0" in name:
        return "has an empty name or a name with a NUL byte"
    if len(encoded) > MAX_PATH or any(len(part) > MAX_NAME for part in encoded.split(b"/")):
        return f"has a path of more than {MAX_PATH} bytes, or a name of more than {MAX_NAME} bytes"
    return ""


def method_fault(info: zipfile.ZipInfo) -> str:
    """Why a file of a zip archive cannot be unpacked, as the end of a sentence; empty for a usable method.

    The package index takes no other methods (pypi/warehouse#1440), and uv warns of them (astral-sh/uv#17885). An LZMA
    header asks for up to 4 GiB of memory, and zipfile has no limit for it.
    """
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return ""
    method = zipfile.compressor_names.get(info.compress_type, "unknown")  # type: ignore[attr-defined]  # has no stub
    return (
        f"has the compression method {info.compress_type} ({method}); the package index takes stored and deflated files"
    )
