"""Unpack downloaded archives without trust: nothing is written outside of the target, or read from there."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Set
from pathlib import Path, PurePosixPath
from typing import IO, cast

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.archive import DAMAGE

_Parts = tuple[str, ...]


def unpack(archive: Path, target: Path) -> None:
    """Unpack a source distribution (.tar.gz) into the empty folder `target`, without its top folder.

    Files get mode 0644 or 0755. After an error, the caller deletes what was written. Raises UsageError that names the
    member when a member has an absolute path or `..`, lies below a link, is a link that leads out, a device, or
    set-user-id, or occurs twice; also when there is no single top folder, when the archive exceeds a limit of
    `builder.wheelfile.limits`, and when it is not an archive.
    """
    try:
        with gzip.open(archive) as stream, tarfile.TarFile(fileobj=cast("IO[bytes]", _Bounded(stream))) as tar:
            _write(list(_limited(archive, tar)), tar, target, archive)
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
            raise UsageError(
                f"the archive unpacks to more than {limits.MAX_SOURCE_BYTES // 2**30} GiB or {limits.MAX_MEMBERS}"
                f" members, or its headers are larger than {limits.MAX_TAR_HEADERS // 2**20} MiB",
                Code.SOURCE_UNSAFE,
                where=archive.name,
            )
        if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
            raise _refused(archive, info.name, "is a device or a pipe")
        if not info.isdir() and info.mode & (stat.S_ISUID | stat.S_ISGID):
            raise _refused(archive, info.name, "is set-user-id or set-group-id")
        yield info


def _parts(archive: Path, name: str) -> _Parts:
    """The path components of a member's name, checked."""
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise _refused(archive, name, "would be written outside of the target folder")
    if fault := limits.path_fault(name):
        raise _refused(archive, name[: limits.MAX_NAME], fault)
    return PurePosixPath(name).parts


def _write(members: list[tarfile.TarInfo], tar: tarfile.TarFile, target: Path, archive: Path) -> None:
    paths = [_parts(archive, member.name) for member in members]
    tops = {parts[0] for parts in paths if parts}
    if len(tops) != 1 or any(len(p) <= 1 and not m.isdir() for p, m in zip(paths, members, strict=True)):
        raise UsageError(
            "a source distribution must contain exactly one top folder and nothing else",
            Code.FETCH_FAILED,
            where=archive.name,
        )
    root, files = target.resolve(), set[_Parts]()
    for member, parts in zip(members, paths, strict=True):
        try:
            # No file is written through a link, which may lead out.
            if any(root.joinpath(*parts[1:end]).is_symlink() for end in range(2, len(parts) + member.isdir())):
                raise FileExistsError
            _write_member(member, root.joinpath(*parts[1:]), tar, archive, root, files)
        except (FileExistsError, NotADirectoryError):
            sentence = f"two members of the archive have conflicting paths: {member.name}"
            raise UsageError(sentence, Code.SOURCE_UNSAFE, where=archive.name) from None
        if not member.issym() and not member.isdir():
            files.add(parts)
    for member, parts in zip(members, paths, strict=True):
        if member.issym() and not Path(os.path.realpath(root.joinpath(*parts[1:]))).is_relative_to(root):
            raise _leads_out(archive, member)


def _write_member(
    member: tarfile.TarInfo, place: Path, tar: tarfile.TarFile, archive: Path, root: Path, files: Set[_Parts]
) -> None:
    """Write one member; `files` are those that were written before."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        place.mkdir(exist_ok=True)
    elif member.issym():
        if member.linkname.startswith("/") or limits.path_fault(member.linkname):
            raise _leads_out(archive, member)
        place.symlink_to(member.linkname)
    elif member.islnk():
        original = _parts(archive, member.linkname)
        if original not in files:
            why = f"is a hard link to {member.linkname!r}, which is not an earlier file"
            raise _refused(archive, member.name, why)
        file = root.joinpath(*original[1:])
        if (count := file.stat().st_nlink) > limits.MAX_HARD_LINKS:
            raise _refused(archive, member.name, f"is hard link {count} to {member.linkname!r}")
        place.hardlink_to(file)  # a copy would let a small archive fill the disk
    else:
        with place.open("xb") as out:
            shutil.copyfileobj(cast("IO[bytes]", tar.extractfile(member)), out)
        place.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def _leads_out(archive: Path, member: tarfile.TarInfo) -> UsageError:
    return _refused(archive, member.name, f"is a link that leads out of the archive, to {member.linkname!r}")
