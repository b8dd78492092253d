"""One reader for wheel files: the zip archive, its files, and the metadata in `.dist-info`. Nothing is executed."""

import base64
import csv
import hashlib
import shutil
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Self

from packaging.tags import parse_tag

from builder.errors import Code, UsageError
from builder.wheelfile import limits
from builder.wheelfile.zip_headers import zip_fault

if TYPE_CHECKING:
    from importlib.metadata import Distribution  # takes long

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
#: Hashes that the wheel format allows.
_HASHES = ("sha256", "sha384", "sha512")
#: RECORD cannot contain its own hash, and signatures are made after it.
UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
#: Files of `.dist-info` that are read and parsed as a whole.
_PARSED = {"METADATA", "WHEEL"}


class DamagedWheelError(UsageError):
    """The file is not a readable wheel: a damaged archive, unsafe or duplicate paths, or no metadata."""


class WheelFile:
    """A wheel opened for reading, a context manager. What is damaged raises DamagedWheelError."""

    #: The wheel file.
    path: Path
    #: Bytes of the file.
    size: int
    #: Paths of the files in the order of the archive, without folders.
    names: tuple[str, ...]

    def __init__(self, path: Path) -> None:
        """Open the archive and read its list of files; no file is unpacked yet."""
        self.path = path
        if not path.exists():
            raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=str(path))
        with self._readable():
            self.size = path.stat().st_size
            with path.open("rb") as stream:
                self._end = limits.end_record(stream)
            if self._end and self._end.size > limits.MAX_FILE_LIST:  # zipfile reads the complete list into memory
                raise self.damaged(f"the list of files in this archive is larger than {limits.MAX_FILE_LIST} bytes")
            self._zip = zipfile.ZipFile(path)
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
        """Why uv refuses the archive, one sentence; empty if it does not."""
        with self._readable():
            stream: IO[bytes] = self._zip.fp  # type: ignore[assignment]  # it is open
            return zip_fault(stream, self._zip.start_dir, self._end) if self._end else ""  # zipfile found the record

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

    def unpack(self, name: str, target: Path) -> Path:
        """Write one file to `target`, which it returns."""
        with self.open(name) as member, target.open("wb") as out:
            shutil.copyfileobj(member, out, 1 << 18)
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

    def damaged(self, sentence: str) -> DamagedWheelError:
        """The error of this wheel."""
        return DamagedWheelError(sentence, Code.WHEEL_DAMAGED, where=str(self.path))

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
            if info.compress_size > self.size:  # zipfile would ask for this much memory
                raise self.damaged(f"{info.filename} is larger than the wheel that contains it")
            if fault := limits.method_fault(info):
                raise self.damaged(f"{info.filename} {fault}")
            folder, _, name = info.filename.partition("/")
            limit = limits.MAX_METADATA if name in _PARSED else limits.MAX_DIST_INFO
            if folder.endswith(".dist-info"):  # it is read as a whole
                if info.file_size > limit:
                    raise self.damaged(f"{info.filename} unpacks to {info.file_size} bytes; the limit is {limit}")
            elif info.file_size >= limits.MIN_RATIO_BYTES and info.file_size > limits.MAX_RATIO * (
                info.compress_size or 1
            ):
                raise self.damaged(
                    f"{info.filename} unpacks from {info.compress_size} to {info.file_size} bytes, more than"
                    f" {limits.MAX_RATIO} times as much"
                )
        if len(files) > limits.MAX_MEMBERS or sum(info.file_size for info in files) > limits.MAX_WHEEL_BYTES:
            raise self.damaged(
                f"the wheel unpacks to more than {limits.MAX_WHEEL_BYTES // 2**30} GiB or {limits.MAX_MEMBERS} files"
            )
        return files

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn what zipfile raises for a damaged archive into DamagedWheelError."""
        try:
            yield
        except (OSError, *DAMAGE) as error:
            reason = getattr(error, "strerror", None) or "the file is not a complete zip archive"
            raise self.damaged(f"this wheel cannot be read: {reason}") from error


def wheel_fault(wheel: WheelFile) -> str:
    """Why installers refuse the archive, or what `record_fault` says; empty if nothing is wrong."""
    return wheel.archive_fault() or record_fault(wheel)


def record_fault(wheel: WheelFile) -> str:
    """The first difference between the files and RECORD, which installers do not compare; empty if they agree."""
    unlisted = {f"{wheel.dist_info}/{name}" for name in UNLISTED}
    text = wheel.read_dist_info("RECORD").decode(errors="replace")
    rows = {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) > 1}
    for name in wheel.names:
        if name in unlisted:
            continue
        if name not in rows:
            return f"RECORD does not list {name}, so the wheel was changed after it was built"
        algorithm, _, wanted = rows[name].partition("=")
        if algorithm not in _HASHES:
            return f"RECORD has no hash of {name}"
        with wheel.open(name) as stream:
            digest = hashlib.file_digest(stream, algorithm).digest()  # type: ignore[arg-type]
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != wanted.rstrip("="):
            return f"{name} differs from its hash in RECORD, so the wheel was changed after it was built"
    missing = sorted(set(rows) - unlisted - set(wheel.names))
    return f"the wheel lacks {missing[0]}, which RECORD lists" if missing else ""


def installed_path(name: str) -> str:
    """The path below site-packages of a file of a wheel; empty for `.dist-info`, scripts, data and headers."""
    top, _, rest = name.partition("/")
    if top.endswith(".data"):
        scheme, _, path = rest.partition("/")
        return path if scheme in ("platlib", "purelib") else ""
    return "" if top.endswith(".dist-info") else name


def differences(first: Path, second: Path) -> list[str]:
    """Every difference, such as `pkg/_C.so: differs`, sorted by path; empty when the wheels are equal bit for bit.

    Raises DamagedWheelError.
    """
    found = [f"the archive: named {first.name} and {second.name}"] if first.name != second.name else []
    if first.read_bytes() == second.read_bytes():
        return found
    one, two = _members(first), _members(second)
    for path in sorted(one.keys() | two.keys()):
        if path not in two or path not in one:
            found.append(f"{path}: only in the {'first' if path in one else 'second'}")
        elif one[path] != two[path]:
            found.append(f"{path}: differs")
    if not found or list(one) != list(two):
        how = "the order of its files" if list(one) != list(two) else "dates, modes or compression of its files"
        found.append(f"the archive: differs in {how}")
    return found


def _members(wheel: Path) -> dict[str, bytes]:
    with WheelFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.names}


def distribution_name(distribution: "Distribution") -> str:
    """The name of an installed project; empty if its metadata is damaged, as an interrupted installation leaves it.

    `Distribution.name` of such a project is None, or raises KeyError in newer Pythons.
    """
    try:
        metadata = distribution.metadata
        return metadata["Name"] if "Name" in metadata else ""  # noqa: SIM401 - its type has no `get` before 3.12
    except (ImportError, OSError, TypeError, ValueError):  # no METADATA, other bytes than UTF-8
        return ""
