"""Compares the headers before the files of a zip archive with the list at its end.

pip reads the list alone. uv reads both, from the first byte to the last when it downloads a wheel, and refuses the
archive if they differ. Source: uv 0.13.9, which `tests/real/wheelfile/test_zip_headers.py` compares with this reader.
"""

import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

from builder.wheelfile.limits import EndRecord

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


def zip_fault(stream: IO[bytes], start: int, record: EndRecord) -> str:
    """Why uv refuses a zip archive that pip reads, or empty. The list of files begins at `start`."""
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
