"""An installed wheel: the files that RECORD lists, read from the folder that they were installed into."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from packaging.tags import parse_tag
from packaging.utils import canonicalize_name

from builder.wheelfile import limits
from builder.wheelfile.archive import WheelContents

if TYPE_CHECKING:
    from importlib.metadata import Distribution  # takes long

#: Files that installers add to `.dist-info`; they may list them in RECORD.
_ADDED = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD"}


def distribution_name(distribution: Distribution) -> str:
    """The name of an installed project; empty if its metadata is damaged, as an interrupted installation leaves it.

    `Distribution.name` of such a project is None, or raises KeyError in newer Pythons.
    """
    try:
        metadata = distribution.metadata
        return metadata["Name"] if "Name" in metadata else ""  # noqa: SIM401 - its type has no `get` before 3.12
    except (ImportError, OSError, TypeError, ValueError):  # no METADATA, other bytes than UTF-8
        return ""


class InstalledWheel(WheelContents):
    """The files of a `.dist-info` folder and those that its RECORD lists, without bytecode and scripts."""

    def __init__(self, dist_info: Path) -> None:
        """Read RECORD and WHEEL. Raises DamagedWheelError if one is missing."""
        self._site, self._info = dist_info.absolute().parent, dist_info.name
        self.path = dist_info  # until the tags are read
        for name in ("RECORD", "WHEEL", "METADATA"):
            if not (dist_info / name).is_file() or (dist_info / name).stat().st_size > limits.MAX_DIST_INFO:
                raise self.damaged(f"the .dist-info folder has no usable {name}")
        self.names = tuple(name for name in [*self._rows, f"{self._info}/RECORD"] if (self._site / name).is_file())
        self.path = Path(self._filename())

    @property
    def dist_info(self) -> str:
        """Name of the `.dist-info` folder."""
        return self._info

    @cached_property
    def _rows(self) -> dict[str, str]:
        """The rows of RECORD about files of the wheel; bytecode, scripts and files of the installer are not."""
        self.names = (f"{self._info}/RECORD",)
        return {
            name: digest
            for name, digest in super().record_rows().items()
            if not (
                name.endswith(".pyc")
                or limits.path_fault(name)
                or PurePosixPath(name).is_absolute()
                or ".." in PurePosixPath(name).parts
                or (name.startswith(f"{self._info}/") and PurePosixPath(name).name in _ADDED)
            )
        }

    def record_rows(self) -> dict[str, str]:
        """The hash of each file of the wheel that RECORD lists."""
        return self._rows

    def read(self, name: str) -> bytes:
        """Contents of one file."""
        with self.open(name) as stream:
            return stream.read()

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """One file as a stream."""
        try:
            with (self._site / name).open("rb") as stream:
                yield stream
        except OSError as error:
            raise self.damaged(f"{name} cannot be read: {error.strerror}") from None

    @property
    def digest(self) -> str:
        """sha256 of RECORD, in hex: it changes with every file."""
        return hashlib.sha256(self.read_dist_info("RECORD")).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum((self._site / name).stat().st_size for name in self.names)

    def _filename(self) -> str:
        """The file name of the wheel, from METADATA and the tags of WHEEL."""
        tags = [tag for line in self.tags for tag in parse_tag(line)]
        parts = (sorted({getattr(tag, part) for tag in tags}) for part in ("interpreter", "abi", "platform"))
        project = canonicalize_name(str(self.metadata.get("Name", ""))[: limits.MAX_NAME]).replace("-", "_")
        version = str(self.metadata.get("Version", ""))[: limits.MAX_NAME].replace("-", "_")
        return "-".join([project, version, *(".".join(part) for part in parts)]) + ".whl"
