"""Unpack downloaded archives without trust: every member is checked before anything is written."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.archive import DAMAGE

_Parts = tuple[str, ...]
#: Bytes that are uncompressed at once.
_CHUNK = 2**20


@dataclass(frozen=True)
class _Member:
    """A member of a tar or zip archive. `link` is its target, relative to the member's own folder."""

    name: str
    size: int
    mode: int
    folder: bool
    link: str | None = None
    copy_of: str | None = None  # a hard link: the full name of an earlier member
    fault: str = ""  # why it is refused


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .tar.* or .zip source distribution into the empty folder `target`, without its top folder.

    Files get mode 0644 or 0755. Nothing is written before every member is checked. Raises UsageError that names the
    member when a member has an absolute path or `..`, lies below a link, is a link that leads out, a device, or
    set-user-id, or occurs twice; also when there is no single top folder, when the archive exceeds a limit of
    `builder.wheelfile.limits`, and when it is not an archive.
    """
    try:
        if zipfile.is_zipfile(archive):
            limits.check_file_list(archive)
            with zipfile.ZipFile(archive) as zipped:
                infos = zipped.infolist()
                _write(list(map(_of_zip, infos)), (zipped.open(info) for info in infos), archive, target)
        else:
            with (
                archive.open("rb") as raw,
                _uncompressed(raw) as stream,
                tarfile.TarFile(fileobj=cast("IO[bytes]", _Bounded(stream))) as tar,
            ):
                found = list(_limited(archive, tar))
                streams = (tar.extractfile(info) if info.isreg() else None for info in found)
                _write(list(map(_of_tar, found)), streams, archive, target)
    except (tarfile.TarError, OSError, *DAMAGE) as error:
        # bz2 and gzip raise OSError without a number; EINVAL: a header leads before the start of the file
        if getattr(error, "errno", None) not in (None, errno.EINVAL):  # a full disk, for example
            raise
        raise UsageError(f"this is not a readable archive: {error}", Code.FETCH_FAILED, where=archive.name) from None


class _Bounded:
    """The uncompressed tar stream. tarfile reads an extended header at once, so a large read means a large header."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= limits.MAX_TAR_HEADERS:
            raise tarfile.ReadError(f"a header of more than {limits.MAX_TAR_HEADERS} bytes")
        return self._stream.read(size)


def _uncompressed(raw: BinaryIO) -> IO[bytes]:
    start = raw.read(2)
    raw.seek(0)
    match start:
        case b"\x1f\x8b":
            return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
        case b"BZ":
            return bz2.open(raw)
        case b"\xfd7":
            return _of_xz(raw)
    return raw


def _of_xz(raw: BinaryIO) -> IO[bytes]:
    """The uncompressed bytes in a temporary file: `lzma.open` takes no limit of memory."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, limits.MAX_XZ_MEMORY)
    with ExitStack() as undo:
        out = undo.enter_context(tempfile.TemporaryFile())
        while not decoder.eof:
            data = raw.read(_CHUNK) if decoder.needs_input else b""
            if decoder.needs_input and not data:
                raise lzma.LZMAError("the file is not complete")
            out.write(decoder.decompress(data, _CHUNK))
            if out.tell() > limits.MAX_SOURCE_BYTES + limits.MAX_TAR_HEADERS:
                raise tarfile.ReadError(f"it unpacks to more than {limits.MAX_SOURCE_BYTES // 2**30} GiB")
        if decoder.unused_data.strip(b"\0") or raw.read(1):
            raise lzma.LZMAError("more bytes follow the compressed stream")
        out.seek(0)
        undo.pop_all()
    return out


def _refused(archive: Path, member: str, why: str) -> UsageError:
    sentence = f"the member {member!r} {why}; no file of the archive is used"
    hint = "inspect the archive before you trust it"
    return UsageError(sentence, Code.SOURCE_UNSAFE, where=archive.name, hints=[hint])


def _limited(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members one by one, so that an archive bomb is found before its list fills the memory."""
    total = headers = 0
    for count, info in enumerate(tar, start=1):
        total += info.size
        headers += sum(len(key) + len(value) for key, value in info.pax_headers.items())
        if count > limits.MAX_MEMBERS or total > limits.MAX_SOURCE_BYTES or headers > limits.MAX_TAR_HEADERS:
            raise _bomb(archive)
        yield info


def _bomb(archive: Path) -> UsageError:
    return UsageError(
        f"the archive unpacks to more than {limits.MAX_SOURCE_BYTES // 2**30} GiB or {limits.MAX_MEMBERS} members, or"
        f" its headers are larger than {limits.MAX_TAR_HEADERS // 2**20} MiB",
        Code.SOURCE_UNSAFE,
        where=archive.name,
    )


def _of_tar(info: tarfile.TarInfo) -> _Member:
    fault = "" if info.isreg() or info.isdir() or info.issym() or info.islnk() else "is a device or a pipe"
    link = info.linkname if info.issym() else None
    return _Member(info.name, info.size, info.mode, info.isdir(), link, info.linkname if info.islnk() else None, fault)


def _of_zip(info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    fault = limits.method_fault(info)
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        fault = "is a link or a device, which a zip of sources does not need"
    return _Member(info.filename, info.file_size, mode, info.is_dir(), fault=fault)


def _parts(archive: Path, name: str) -> _Parts:
    """The path components of a member's name, checked."""
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise _refused(archive, name, "would be written outside of the target folder")
    if fault := limits.path_fault(name):
        raise _refused(archive, name[: limits.MAX_NAME], fault)
    return PurePosixPath(name).parts


def _write(members: list[_Member], streams: Iterator[IO[bytes] | None], archive: Path, target: Path) -> None:
    for member in members:
        fault = member.fault
        if not fault and not member.folder and member.mode & (stat.S_ISUID | stat.S_ISGID):
            fault = "is set-user-id or set-group-id"
        if fault:
            raise _refused(archive, member.name, fault)
    if len(members) > limits.MAX_MEMBERS or sum(member.size for member in members) > limits.MAX_SOURCE_BYTES:
        raise _bomb(archive)
    paths = [_parts(archive, member.name) for member in members]
    tops = {parts[0] for parts in paths if parts}
    if len(tops) != 1 or any(len(p) <= 1 and not m.folder for p, m in zip(paths, members, strict=True)):
        raise UsageError(
            "a source distribution must contain exactly one top folder and nothing else",
            Code.FETCH_FAILED,
            where=archive.name,
        )
    _check(members, paths, archive)
    for member, parts, stream in zip(members, paths, streams, strict=True):
        place = target.joinpath(*parts[1:])
        place.parent.mkdir(parents=True, exist_ok=True)
        if member.folder:
            place.mkdir(exist_ok=True)
        elif member.link is not None:
            place.symlink_to(member.link)
        elif member.copy_of is not None:  # a copy would let a small archive fill the disk
            place.hardlink_to(target.joinpath(*_parts(archive, member.copy_of)[1:]))
        else:
            with place.open("xb") as out:
                assert stream is not None  # noqa: S101 - regular files have one, by tarfile's contract
                shutil.copyfileobj(stream, out)
            place.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def _check(members: Sequence[_Member], paths: Sequence[_Parts], archive: Path) -> None:
    """Check the members against each other, from their names alone: no link exists yet that could be followed."""
    links = {p: str(m.link) for m, p in zip(members, paths, strict=True) if m.link is not None}
    files = {p for m, p in zip(members, paths, strict=True) if not m.folder}
    seen: set[_Parts] = set()
    copies: Counter[_Parts] = Counter()
    for member, parts in zip(members, paths, strict=True):
        below = next((parts[:end] for end in range(1, len(parts)) if parts[:end] in files), None)
        if below or (parts in files and (member.folder or parts in seen)):
            name = "/".join(below or parts)
            raise UsageError(
                f"two members of the archive have conflicting paths: {name}", Code.SOURCE_UNSAFE, where=archive.name
            )
        if member.copy_of is not None:
            original = _parts(archive, member.copy_of)
            copies[original] += 1
            if original not in seen or original in links:
                why = f"is a hard link to {member.copy_of!r}, which is not an earlier file"
                raise _refused(archive, member.name, why)
            if copies[original] > limits.MAX_HARD_LINKS:
                raise _refused(archive, member.name, f"is hard link {copies[original]} to {member.copy_of!r}")
        if member.link is not None and not _stays_inside(parts, links):
            raise _refused(archive, member.name, f"is a link that leads out of the archive, to {member.link!r}")
        if not member.folder:
            seen.add(parts)


def _stays_inside(link: _Parts, links: Mapping[_Parts, str]) -> bool:
    """Whether a link, and every link on its way, ends below the top folder of the archive."""
    left, passed = list(reversed(link)), 0
    place: list[str] = []
    while left:
        part = left.pop()
        if part == "..":
            if len(place) <= 1:
                return False
            place.pop()
            continue
        place.append(part)
        to = links.get(tuple(place))
        if to is not None:
            passed += 1
            if passed > limits.MAX_LINK_DEPTH or to.startswith("/") or limits.path_fault(to):
                return False
            place.pop()
            left += reversed(PurePosixPath(to).parts)
    return len(place) >= 1
