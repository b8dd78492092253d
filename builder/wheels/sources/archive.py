"""Unpack downloaded archives without trust: nothing is written outside of the target, or read from there."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.archive import DAMAGE

_Parts = tuple[str, ...]


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
    """Unpack a .tar.gz or .zip source distribution into the empty folder `target`, without its top folder.

    Files get mode 0644 or 0755. After an error, the caller deletes what was written. Raises UsageError that names the
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
            with gzip.open(archive) as stream, tarfile.TarFile(fileobj=cast("IO[bytes]", _Bounded(stream))) as tar:
                found = list(_limited(archive, tar))
                streams = (tar.extractfile(info) if info.isreg() else None for info in found)
                _write(list(map(_of_tar, found)), streams, archive, target)
    except (tarfile.TarError, OSError, *DAMAGE) as error:
        # gzip raises OSError without a number; EINVAL: a header leads before the start of the file
        if getattr(error, "errno", None) not in (None, errno.EINVAL):  # a full disk, for example
            raise
        raise UsageError(f"this is not a readable archive: {error}", Code.FETCH_FAILED, where=archive.name) from None


class _Bounded:
    """The uncompressed tar stream. tarfile reads an extended header at once, so a large read means a large header."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= limits.MAX_TAR_HEADERS:
            raise tarfile.ReadError(f"a header of more than {limits.MAX_TAR_HEADERS} bytes")
        return self._stream.read(size)


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
    root, files = target.resolve(), set[_Parts]()
    for member, parts, stream in zip(members, paths, streams, strict=True):
        try:
            # No file is written through a link, which may lead out.
            if any(root.joinpath(*parts[1:end]).is_symlink() for end in range(2, len(parts) + member.folder)):
                raise FileExistsError
            _write_member(member, root.joinpath(*parts[1:]), stream, archive, root, files)
        except (FileExistsError, NotADirectoryError):
            sentence = f"two members of the archive have conflicting paths: {member.name}"
            raise UsageError(sentence, Code.SOURCE_UNSAFE, where=archive.name) from None
        if member.link is None and not member.folder:
            files.add(parts)
    for member, parts in zip(members, paths, strict=True):
        if member.link is not None and not Path(os.path.realpath(root.joinpath(*parts[1:]))).is_relative_to(root):
            raise _leads_out(archive, member)


def _write_member(
    member: _Member, place: Path, stream: IO[bytes] | None, archive: Path, root: Path, files: Set[_Parts]
) -> None:
    """Write one member; `files` are those that were written before."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if member.folder:
        place.mkdir(exist_ok=True)
    elif member.link is not None:
        if member.link.startswith("/") or limits.path_fault(member.link):
            raise _leads_out(archive, member)
        place.symlink_to(member.link)
    elif member.copy_of is not None:
        original = _parts(archive, member.copy_of)
        if original not in files:
            raise _refused(archive, member.name, f"is a hard link to {member.copy_of!r}, which is not an earlier file")
        file = root.joinpath(*original[1:])
        if (count := file.stat().st_nlink) > limits.MAX_HARD_LINKS:
            raise _refused(archive, member.name, f"is hard link {count} to {member.copy_of!r}")
        place.hardlink_to(file)  # a copy would let a small archive fill the disk
    else:
        with place.open("xb") as out:
            assert stream is not None  # noqa: S101 - regular files have one, by tarfile's contract
            shutil.copyfileobj(stream, out)
        place.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def _leads_out(archive: Path, member: _Member) -> UsageError:
    return _refused(archive, member.name, f"is a link that leads out of the archive, to {member.link!r}")
