"""One reader for wheel files: the zip archive, its files, and the metadata in `.dist-info`. Nothing is executed."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Self

from builder.errors import UsageError

#: What zipfile raises for a damaged archive. RuntimeError: an encrypted file; NotImplementedError: a compression
#: method that no wheel uses.
_DAMAGE = (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError)


class DamagedWheelError(UsageError):
    """The file is not a readable wheel: a damaged archive, unsafe or duplicate paths, or no metadata."""


class WheelFile:
    """A wheel opened for reading; a context manager.

    Every method and property raises DamagedWheelError where the file is damaged.

    Attributes:
        path: the wheel file.
        names: paths of the files in the archive, in its order, without folders.

    """

    def __init__(self, path: Path) -> None:
        """Open the archive and read its list of files; no file is unpacked yet."""
        self.path = path
        with self._readable():
            self._zip = zipfile.ZipFile(path)
        try:
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

    def executable(self, name: str) -> bool:
        """Whether the owner may execute the file."""
        return bool(self._members[name].external_attr >> 16 & stat.S_IXUSR)

    @cached_property
    def dist_info(self) -> str:
        """Name of the wheel's one `.dist-info` folder."""
        tops = {name.partition("/")[0] for name in self.names if "/" in name}
        found = sorted(top for top in tops if top.endswith(".dist-info"))
        if len(found) != 1:
            raise self._damaged(f"a wheel has one .dist-info folder, but this wheel has {len(found)}")
        return found[0]

    def read_dist_info(self, name: str) -> bytes:
        """Contents of one file of the `.dist-info` folder."""
        path = f"{self.dist_info}/{name}"
        if path not in self._members:
            raise self._damaged(f"the .dist-info folder has no {name}")
        return self.read(path)

    @cached_property
    def metadata(self) -> Message:
        """The headers of METADATA (core metadata)."""
        return message_from_bytes(self.read_dist_info("METADATA"))

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The Tag lines of WHEEL, sorted, e.g. ("cp310-abi3-manylinux_2_28_x86_64",)."""
        return tuple(sorted(str(tag) for tag in message_from_bytes(self.read_dist_info("WHEEL")).get_all("Tag", [])))

    def _checked(self, infos: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
        """The archive's files without its folders. Limits on what an archive may hold belong here.

        Refuses paths that would be unpacked outside of the target folder, and two files of one path.
        """
        files = [info for info in infos if not info.is_dir()]
        names = [info.filename for info in files]
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise self._damaged(
                    f"the wheel contains a file that would be unpacked outside of the target folder: {name!r}"
                )
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise self._damaged(f"the wheel contains two files of the same name: {', '.join(twice)}")
        return files

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn what zipfile raises for a damaged archive into DamagedWheelError."""
        try:
            yield
        except _DAMAGE as error:
            reason = getattr(error, "strerror", None) or "the file is not a complete zip archive"
            raise self._damaged(f"this wheel cannot be read: {reason}") from error

    def _damaged(self, sentence: str) -> DamagedWheelError:
        return DamagedWheelError(sentence, where=str(self.path))
