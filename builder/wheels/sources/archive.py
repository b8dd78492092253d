"""Unpack downloaded archives without trust: nothing is written outside of the target, or read from there."""

import errno
import os
import stat
import tarfile
import tempfile
from pathlib import Path

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.archive import DAMAGE

#: Errors of this machine; any other one is the archive's own.
_OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a source distribution (.tar.gz) into the empty folder `target`, without its top folder.

    Files get mode 0644 or 0755. After an error, the caller deletes what was written. Raises UsageError if tarfile's
    filter `data` refuses a member: an absolute path or `..`, a link that leads out, a device. Also if there is no
    single top folder, if the archive exceeds a limit of `builder.wheelfile.limits`, and if it is not an archive.
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as folder:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                _check_size(archive, tar)
                tar.extractall(folder, filter=_checked)  # noqa: S202 - the filter
        except tarfile.FilterError as error:
            raise _unsafe(archive, str(error)) from None
        except (tarfile.TarError, OSError, KeyError, *DAMAGE) as error:  # KeyError: a hard link to no member
            if getattr(error, "errno", None) in _OF_MACHINE:
                raise
            sentence = f"this is not a readable archive: {error}"
            raise UsageError(sentence, Code.FETCH_FAILED, where=archive.name) from None
        tops = list(Path(folder).iterdir())
        if len(tops) != 1 or tops[0].is_symlink() or not tops[0].is_dir():
            sentence = "a source distribution must contain exactly one top folder and nothing else"
            raise UsageError(sentence, Code.FETCH_FAILED, where=archive.name)
        for path in tops[0].iterdir():
            path.rename(target / path.name)
    for place, folders, files in os.walk(target):
        for link in (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink()):
            if not Path(os.path.realpath(link)).is_relative_to(target.resolve()):
                raise _unsafe(archive, f"{link.relative_to(target)} is a link that leads out, to {link.readlink()}")


def _check_size(archive: Path, tar: tarfile.TarFile) -> None:
    """Read the members one by one, so that an archive bomb is found before its list fills the memory."""
    total = 0
    for count, member in enumerate(tar, start=1):
        total += member.size
        if count > limits.MAX_MEMBERS or total > limits.MAX_SOURCE_BYTES:
            gigabytes = limits.MAX_SOURCE_BYTES // 2**30
            raise _unsafe(archive, f"it unpacks to more than {gigabytes} GiB or {limits.MAX_MEMBERS} members")


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """A member as it is written: of its mode, only whether its owner may execute it, and the time of now."""
    safe = tarfile.data_filter(member, folder)
    if member.isdir():
        return safe
    mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    return safe.replace(mode=mode, mtime=None, deep=False)  # type: ignore[arg-type]  # None: it is not set


def _unsafe(archive: Path, why: str) -> UsageError:
    sentence, hint = f"no file of the archive is used: {why}", "inspect the archive before you trust it"
    return UsageError(sentence, Code.SOURCE_UNSAFE, where=archive.name, hints=[hint])
