"""One reader for wheel files: the zip archive, its files, and the metadata in `.dist-info`. Nothing is executed."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import stat
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Self

from packaging.tags import parse_tag

from builder.errors import Code, UsageError
from builder.wheelfile import limits

# Compares the headers before the files of a zip archive with the list at its end. pip reads the list alone. uv reads
# both, from the first byte to the last when it downloads a wheel, and refuses the archive if they differ. Source: uv
# 0.13.9, which `tests/real/wheelfile/test_zip_headers.py` compares with this reader.

#: Flags, method, (time and date), CRC, packed and unpacked bytes; lengths of name and extra fields (APPNOTE 4.3.7).
_LOCAL = struct.Struct("<4sxxHH4xIIIHH")
#: The same, with the length of the comment, and where the local header is (4.3.12).
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHH8xI")
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 1, 8, 0x800
_ZIP64, _FULL = 1, 0xFFFFFFFF
#: The only length of a needless ZIP64 field that uv takes: that of two sizes, in a local header.
_TWO_SIZES = 16


class _Header(NamedTuple):
    """A header of a file in the archive. The data of a local header begin at `end`."""

    name: bytes
    flags: int
    method: int
    #: CRC, packed and unpacked bytes.
    sums: tuple[int, int, int]
    #: Of the local header, from the first byte of the archive.
    start: int
    end: int
    #: There are 64-bit sizes.
    wide: bool


def zip_fault(stream: IO[bytes], start: int, record: limits.EndRecord) -> str:
    """Why uv refuses a zip archive that pip reads, one sentence; empty if it does not.

    The list of files begins at `start`. The files themselves are not unpacked. Raises struct.error, and OSError.
    """
    try:
        found = list(_central(_at(stream, start, record.size)))
        if len(found) != record.files:
            raise ValueError(f"the record at the end says {record.files} files, but the list has {len(found)}")
        stream.seek(record.end)
        if stream.read().strip(b"\0"):
            raise ValueError("bytes are after the record at the end")
        end = 0
        for central in sorted(found, key=lambda one: one.start):
            if central.start != end:
                raise ValueError(f"bytes that are no file of the list are before {_shown(central.name)}")
            end = _after(stream, central)
        if end != start:
            raise ValueError("bytes that are no file of the list are before the list of files")
    except ValueError as error:
        return f"uv does not install the archive: {error}; run `buildfarm relabel WHEEL`, which writes it again"
    return ""


def _central(data: bytes) -> Iterator[_Header]:
    at = 0
    while at < len(data):
        _, flags, method, crc, packed, size, names, extras, comment, start = _CENTRAL.unpack_from(data, at)
        at += _CENTRAL.size
        name, at = data[at : at + names], at + names
        wide, (size, packed, start) = _sizes(name, data[at : at + extras], (size, packed, start), needless=(0,))
        at += extras + comment
        yield _Header(name, flags, method, (crc, packed, size), start, at, wide)


def _local(stream: IO[bytes], start: int) -> _Header:
    _, flags, method, crc, packed, size, names, extras = _LOCAL.unpack(_at(stream, start, _LOCAL.size))
    name, extra = stream.read(names), stream.read(extras)
    wide, (size, packed) = _sizes(name, extra, (size, packed), needless=(0, _TWO_SIZES))
    return _Header(name, flags, method, (crc, packed, size), start, stream.tell(), wide)


def _sizes(name: bytes, extra: bytes, values: tuple[int, ...], *, needless: tuple[int, ...]) -> tuple[bool, list[int]]:
    """Whether there is a ZIP64 field, and the values: those of 0xFFFFFFFF are in it (APPNOTE 4.5.3)."""
    fields: dict[int, bytes] = {}
    while len(extra) >= 4:
        number, length = struct.unpack_from("<HH", extra)
        if len(extra) < 4 + length:
            raise ValueError(f"an extra field of {_shown(name)} ends after its header")
        if number in fields:
            raise ValueError(f"{_shown(name)} has two extra fields {number:#x}")
        fields[number], extra = extra[4 : 4 + length], extra[4 + length :]
    wide = fields.get(_ZIP64, b"")
    if len(wide) != 8 * values.count(_FULL) and not (_FULL not in values and len(wide) in needless):
        raise ValueError(f"{_shown(name)} has a ZIP64 field of {len(wide)} bytes, which its sizes do not need")
    large = iter(struct.unpack(f"<{len(wide) // 8}Q", wide))
    return _ZIP64 in fields, [next(large) if value == _FULL else value for value in values]


def _after(stream: IO[bytes], central: _Header) -> int:
    """Where the file of a header in the list ends. Raises ValueError if its local header differs."""
    local, name = _local(stream, central.start), _shown(central.name)
    if local.name != central.name:
        raise ValueError(f"{name} has the name {_shown(local.name)} in its local header")
    if not central.name.isascii() and not local.flags & central.flags & _UTF8:
        raise ValueError(f"the name {name} is not marked as UTF-8")
    if local.method != central.method or (local.flags ^ central.flags) & (_ENCRYPTED | _DESCRIPTOR):
        raise ValueError(f"{name} has another method or other flags in its local header")
    end, sums = local.end + central.sums[1], local.sums
    if local.flags & _DESCRIPTOR:  # the sums follow the data, with or without a signature
        layout = "<IQQ" if local.wide else "<III"
        data = _at(stream, end, 4 + struct.calcsize(layout))
        signed = 4 * data.startswith(b"PK\7\10")
        sums, end = struct.unpack_from(layout, data, signed), end + signed + struct.calcsize(layout)
    if sums != central.sums:
        raise ValueError(f"{name} has another checksum or size in its local header")
    return end


def _shown(name: bytes) -> str:
    return name[:100].decode(errors="backslashreplace")


def _at(stream: IO[bytes], start: int, size: int) -> bytes:
    stream.seek(start)
    return stream.read(size)


def wheel_fault(wheel: WheelContents) -> str:
    """Why installers refuse the archive of a wheel, or what `record_fault` says; empty if nothing is wrong.

    Reads every file of the wheel. Raises DamagedWheelError.
    """
    return wheel.archive_fault() or record_fault(wheel)


# Compares the files of a wheel with its RECORD: installers do not, so a changed wheel would go unnoticed.

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


#: What zipfile and the decompressors raise for a damaged archive, besides OSError. RuntimeError: an encrypted file;
#: NotImplementedError, a RuntimeError: a newer version of the format; IndexError: an empty name. LZMAError: a .tar.xz.
DAMAGE = (
    zipfile.BadZipFile,
    LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    OverflowError,
    RuntimeError,
    ValueError,
)
#: Files of `.dist-info` that are read and parsed as a whole.
_PARSED = {"METADATA", "WHEEL"}


class DamagedWheelError(UsageError):
    """The file is not a readable wheel: a damaged archive, unsafe or duplicate paths, or no metadata."""


class WheelContents(ABC):
    """The files of a wheel, in an archive or installed.

    Every method and property raises DamagedWheelError where a file is damaged.
    """

    #: The wheel file; for an installed wheel, the file name that it had, without a folder.
    path: Path
    #: Paths of the files.
    names: tuple[str, ...]

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Contents of one file."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """One file as a stream, so that a large library need not be held in memory."""

    @property
    @abstractmethod
    def dist_info(self) -> str:
        """Name of the wheel's one `.dist-info` folder."""

    def archive_fault(self) -> str:
        """Why an installer refuses the archive, one sentence; empty for an installed wheel."""
        return ""

    def unpack(self, name: str, target: Path) -> Path:
        """Write one file to `target`, which it returns."""
        with self.open(name) as member, target.open("wb") as out:
            shutil.copyfileobj(member, out, 1 << 20)
        return target

    def read_dist_info(self, name: str) -> bytes:
        """Contents of one file of the `.dist-info` folder."""
        path = f"{self.dist_info}/{name}"
        if path not in self.names:
            raise self.damaged(f"the .dist-info folder has no {name}")
        return self.read(path)

    @cached_property
    def metadata(self) -> Message:
        """The headers of METADATA (core metadata)."""
        return self._headers("METADATA")

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The Tag lines of WHEEL, sorted, e.g. ("cp310-abi3-manylinux_2_28_x86_64",)."""
        tags = sorted(str(tag) for tag in self._headers("WHEEL").get_all("Tag", []))
        if any(len(tag) > limits.MAX_NAME for tag in tags):  # `a.b-c.d-e.f` stands for every combination
            raise self.damaged(f"WHEEL has a Tag of more than {limits.MAX_NAME} characters")
        for tag in tags:
            try:
                parse_tag(tag)
            except ValueError:
                raise self.damaged(f"WHEEL has a Tag that is none: {tag!r}") from None
        return tuple(tags)

    @property
    def purelib(self) -> bool:
        """Whether WHEEL has `Root-Is-Purelib: true`."""
        return str(self._headers("WHEEL").get("Root-Is-Purelib", "")).strip().lower() == "true"

    def _headers(self, name: str) -> Message:
        """The headers of a file. A byte that is not UTF-8 becomes U+FFFD, so that the text can be printed."""
        text = self.read_dist_info(name).decode(errors="replace")
        return HeaderParser().parsestr(text)

    def record_rows(self) -> dict[str, str]:
        """The hash of each file that RECORD lists, such as `sha256=…`; it may be empty."""
        text = self.read_dist_info("RECORD").decode(errors="replace")
        return {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) > 1}

    def damaged(self, sentence: str) -> DamagedWheelError:
        """The error of this wheel."""
        return DamagedWheelError(sentence, Code.WHEEL_DAMAGED, where=str(self.path))


class WheelFile(WheelContents):
    """A wheel opened for reading; a context manager. `names` are in the order of the archive, without folders."""

    def __init__(self, path: Path, stream: IO[bytes] | None = None) -> None:
        """Open the archive and read its list of files; no file is unpacked yet.

        `stream` holds the bytes of a wheel that is not on this machine; `path` is then its name only.
        """
        self.path = path
        if not stream and not path.exists():
            raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=str(path))
        with self._readable():
            self._size = stream.seek(0, os.SEEK_END) if stream else path.stat().st_size
            limits.check_file_list(path, stream)
            self._zip = zipfile.ZipFile(stream or path)
        try:
            with self._readable():
                self._members = {info.filename: info for info in self._checked(self._zip.infolist())}
        except BaseException:
            self._zip.close()
            raise
        self.names = tuple(self._members)

    def __enter__(self) -> Self:
        """Return the open wheel."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the archive."""
        self._zip.close()

    def read(self, name: str) -> bytes:
        """Contents of one file."""
        with self._readable():
            return self._zip.read(self._members[name])

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """One file as a stream, so that a large library need not be held in memory."""
        with self._readable(), self._zip.open(self._members[name]) as stream:
            yield stream

    def archive_fault(self) -> str:
        """Why uv refuses the archive; empty if it does not."""
        with self._readable():
            stream: IO[bytes] = self._zip.fp  # type: ignore[assignment]  # it is open
            if (end := limits.end_record(stream)) is None:
                raise zipfile.BadZipFile
            return zip_fault(stream, self._zip.start_dir, end)

    def executable(self, name: str) -> bool:
        """Whether the owner may execute the file."""
        return bool(self._members[name].external_attr >> 16 & stat.S_IXUSR)

    @cached_property
    def dist_info(self) -> str:
        """Name of the wheel's one `.dist-info` folder."""
        tops = {name.partition("/")[0] for name in self.names if "/" in name}
        found = sorted(top for top in tops if top.endswith(".dist-info"))
        if len(found) != 1:
            raise self.damaged(f"a wheel has one .dist-info folder, but this wheel has {len(found)}")
        return found[0]

    def _checked(self, infos: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
        """The archive's files without its folders.

        Refuses paths that would be unpacked outside of the target folder, two files of one path, compression methods
        that the package index refuses, and files that unpack to more than `builder.wheelfile.limits` allows.
        """
        files = [info for info in infos if not info.is_dir()]
        names = [info.filename for info in files]
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise self.damaged(
                    f"the wheel contains a file that would be unpacked outside of the target folder: {name!r}"
                )
            if fault := limits.path_fault(name):
                raise self.damaged(f"a file of the wheel {fault}: {name[:100]!r}")
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise self.damaged(f"the wheel contains two files of the same name: {', '.join(twice[:5])}")
        for info in files:
            if info.compress_size > self._size:  # zipfile would ask for this much memory
                raise self.damaged(f"{info.filename} is larger than the wheel that contains it")
            if fault := limits.method_fault(info):
                raise self.damaged(f"{info.filename} {fault}")
            self._check_size(info)
        if len(files) > limits.MAX_MEMBERS or sum(info.file_size for info in files) > limits.MAX_WHEEL_BYTES:
            raise self.damaged(
                f"the wheel unpacks to more than {limits.MAX_WHEEL_BYTES // 2**30} GiB or {limits.MAX_MEMBERS} files"
            )
        return files

    def _check_size(self, info: zipfile.ZipInfo) -> None:
        """Refuse a file of `.dist-info` that is too large to be read, and a file that is nearly only zeros."""
        folder, _, name = info.filename.partition("/")
        if folder.endswith(".dist-info"):
            limit = limits.MAX_METADATA if name in _PARSED else limits.MAX_DIST_INFO
            if info.file_size > limit:
                raise self.damaged(f"{info.filename} unpacks to {info.file_size} bytes; the limit is {limit}")
        elif limits.is_bomb(info.file_size, info.compress_size):
            raise self.damaged(
                f"{info.filename} unpacks from {info.compress_size} to {info.file_size} bytes, more than"
                f" {limits.MAX_RATIO} times as much"
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn what zipfile raises for a damaged archive into DamagedWheelError."""
        try:
            yield
        except (OSError, *DAMAGE) as error:
            reason = getattr(error, "strerror", None) or "the file is not a complete zip archive"
            raise self.damaged(f"this wheel cannot be read: {reason}") from error
