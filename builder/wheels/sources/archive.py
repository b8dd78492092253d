"""Unpack downloaded archives without trust: every member is checked before it is written."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from builder.errors import UsageError

# Far larger than any known source distribution, far smaller than a disk.
MAX_BYTES = 4 * 2**30
MAX_MEMBERS = 200_000


@dataclass(frozen=True)
class _Member:
    """One member of a tar or zip archive. `link` is its target, relative to the member's own folder."""

    name: str
    size: int
    executable: bool
    folder: bool
    link: str | None = None
    copy_of: str | None = None  # a hard link: the full name of an earlier member


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .tar.* or .zip source distribution into the empty folder `target`, without its top folder.

    Files get mode 0644 or 0755. Raises UsageError that names the member when a member has an absolute path or `..`, is
    a link that leads out, a device, or set-user-id, or occurs twice; also when there is no single top folder, when
    the archive exceeds MAX_BYTES or MAX_MEMBERS, and when it is not an archive.
    """
    with _refusals(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                infos = zipped.infolist()
                _write([_of_zip(archive, i) for i in infos], (zipped.open(i) for i in infos), archive, target)
        else:
            with tarfile.open(archive) as tar:
                found = list(_judged(archive, tar))
                streams = (tar.extractfile(i) if i.isreg() else None for i in found)
                _write([_of_tar(archive, i) for i in found], streams, archive, target)


@contextmanager
def _refusals(archive: Path) -> Iterator[None]:
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        LZMAError,
        zlib.error,
        NotImplementedError,
    ) as error:
        raise UsageError(f"this is not a readable archive: {error}", where=archive.name) from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            f"two members of the archive have conflicting paths: {Path(str(error.filename2 or error.filename)).name}",
            where=archive.name,
        ) from None


def _refused(archive: Path, member: str, why: str) -> UsageError:
    return UsageError(
        f"the member {member!r} {why}; no file of the archive is used",
        where=archive.name,
        hints=("inspect the archive before you trust it",),
    )


def _judged(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members one by one, so that an archive bomb is found before its list fills the memory."""
    total = 0
    for count, info in enumerate(tar, start=1):
        total += info.size
        if count > MAX_MEMBERS or total > MAX_BYTES:
            raise _bomb(archive)
        yield info


def _bomb(archive: Path) -> UsageError:
    return UsageError(
        f"the archive unpacks to more than {MAX_BYTES // 2**30} GiB or {MAX_MEMBERS} members", where=archive.name
    )


def _of_tar(archive: Path, info: tarfile.TarInfo) -> _Member:
    if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        raise _refused(archive, info.name, "is a device or a pipe")
    if not info.isdir() and info.mode & (stat.S_ISUID | stat.S_ISGID):
        raise _refused(archive, info.name, "is set-user-id or set-group-id")
    return _Member(
        name=info.name,
        size=info.size,
        executable=bool(info.mode & stat.S_IXUSR),
        folder=info.isdir(),
        link=info.linkname if info.issym() else None,
        copy_of=info.linkname if info.islnk() else None,
    )


def _of_zip(archive: Path, info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(archive, info.filename, "is a link or a device, which a zip of sources does not need")
    if not info.is_dir() and mode & (stat.S_ISUID | stat.S_ISGID):
        raise _refused(archive, info.filename, "is set-user-id or set-group-id")
    return _Member(
        name=info.filename,
        size=info.file_size,
        executable=bool(mode & stat.S_IXUSR),
        folder=info.is_dir(),
    )


def _parts(archive: Path, name: str) -> tuple[str, ...]:
    """The path components of a member's name, checked."""
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise _refused(archive, name, "would be written outside of the target folder")
    return PurePosixPath(name).parts


def _write(members: list[_Member], streams: Iterator[IO[bytes] | None], archive: Path, target: Path) -> None:
    if len(members) > MAX_MEMBERS or sum(member.size for member in members) > MAX_BYTES:
        raise _bomb(archive)
    paths = [_parts(archive, member.name) for member in members]
    tops = {parts[0] for parts in paths if parts}
    if len(tops) != 1 or any(len(p) == 1 and not m.folder for p, m in zip(paths, members, strict=True)):
        raise UsageError(
            "a source distribution must contain exactly one top folder and nothing else",
            where=archive.name,
        )
    files: dict[tuple[str, ...], Path] = {}
    for member, parts, stream in zip(members, paths, streams, strict=True):
        place = target.joinpath(*parts[1:])
        if member.folder:
            place.mkdir(parents=True, exist_ok=True)
        elif member.link is None:
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.copy_of is None:
                with place.open("xb") as out:
                    assert stream is not None  # noqa: S101 - regular files have one, by tarfile's contract
                    shutil.copyfileobj(stream, out)
                place.chmod(0o755 if member.executable else 0o644)
            elif original := files.get(_parts(archive, member.copy_of)):
                place.hardlink_to(original)  # copies would let a small archive fill the disk
            else:
                why = f"is a hard link to {member.copy_of!r}, which is not an earlier file"
                raise _refused(archive, member.name, why)
            files[parts] = place
    # Links are created last, so that no member is written through a link; then each link is resolved.
    links = [(m, target.joinpath(*p[1:])) for m, p in zip(members, paths, strict=True) if m.link is not None]
    for member, place in links:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(str(member.link))
    for member, place in links:
        if PurePosixPath(str(member.link)).is_absolute() or not _inside(place, target):
            why = f"is a link that leads out of the archive, to {member.link!r}"
            raise _refused(archive, member.name, why)


def _inside(link: Path, target: Path) -> bool:
    try:
        return link.resolve().is_relative_to(target.resolve())
    except (OSError, RuntimeError):  # a cycle of links
        return False
