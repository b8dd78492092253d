"""Where an index lies: named objects in a folder, or in a bucket of an object store.

A name is a relative path with `/`, such as `simple/my-ext/index.html`. Every write is atomic, so a reader never sees a
partial object. `Folder` and `Bucket` have the same methods.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from builder.errors import Code, MissingToolError, UsageError
from builder.store import local_path, remove_temporary_files, sync, write_if_changed
from builder.untrusted import parts_of

if TYPE_CHECKING:
    from builder.publish.index.bucket import Bucket

Objects: TypeAlias = "Folder | Bucket"


class Folder:
    """Objects as files below a folder of this machine.

    Folders that become empty stay, because another process may be writing into them; `folders` leaves them out.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, name: str) -> bytes:
        """Contents of a file; raises FileNotFoundError."""
        return self._path(name).read_bytes()

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A file with the contents, which may be large; raises FileNotFoundError."""
        self._path(name).stat()
        yield self._path(name)

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Contents of every file directly below a folder, by its last name; empty for a missing folder."""
        found = {}
        for name in self.names(folder):
            with suppress(FileNotFoundError, IsADirectoryError):  # deleted meanwhile; a sub-folder
                found[name] = self._path(f"{folder}/{name}").read_bytes()
        return found

    def names(self, folder: str) -> list[str]:
        """The last names of the files and folders directly below a folder, sorted, without hidden ones."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(name for name in os.listdir(self._path(folder)) if not name.startswith("."))  # noqa: PTH208
        return []

    def folders(self, folder: str) -> list[str]:
        """The names among `names` that are folders with something in them, sorted; a link to a folder is one."""
        return [name for name in self.names(folder) if self.names(f"{folder}/{name}")]

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file, unless it has this content already."""
        write_if_changed(self._path(name), data)

    def create(self, name: str, data: bytes | Path) -> bool:
        """Write a file, from bytes or from a file, unless it exists; of several processes, one succeeds."""
        path = self._path(name)
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid4().hex}.{os.getpid()}")  # `remove_temporary_files` knows this form
        try:
            if isinstance(data, Path):
                shutil.copyfile(data, temporary)
            else:
                temporary.write_bytes(data)
            sync(temporary)
            os.link(temporary, path)  # unlike a rename, a link does not replace a file
        except FileExistsError:
            return False
        except OSError as error:  # that of a copy may name the file that was read
            error.filename = str(path)
            raise
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)
        return True

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        self._path(name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return self._path(name).is_file()

    def age(self, name: str) -> float:
        """Seconds since a file was written; raises FileNotFoundError."""
        return time.time() - self._path(name).stat().st_mtime

    def remove_leftovers(self) -> None:
        """Delete temporary files of killed processes."""
        for folder, _, _ in os.walk(self.root):
            remove_temporary_files(Path(folder))

    def _path(self, name: str) -> Path:
        return self.root.joinpath(*parts_of(name))


def read(objects: Objects, name: str) -> bytes | None:
    """Contents of an object; None if there is none."""
    try:
        return objects.read(name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def url_of(place: str) -> str:
    """The URL of the root of an index in a folder, with a final slash; empty for an index in a bucket."""
    return f"{folder.resolve().as_uri()}/" if (folder := local_path(place)) else ""


def open_objects(place: str) -> Objects:
    """The objects in a folder or in `s3://BUCKET/PREFIX`.

    Raises UsageError for a different URL or a bucket that does not exist, and MissingToolError without s3fs or without
    an answer of the object store.
    """
    if folder := local_path(place):
        return Folder(folder)
    if place.startswith(("http://", "https://")):
        sentence = "of all commands, only `buildfarm publish --to URL` changes an index through its server"
        hint = "run the command on the machine of the server, with the folder that `buildfarm serve` serves"
        raise UsageError(sentence, Code.INDEX_NOT_WRITABLE, where=place, hints=[hint])
    if not place.startswith("s3://"):
        sentence = "an index can be changed in a folder or in s3:// only"
        hint = "most object stores speak S3: name the server in AWS_ENDPOINT_URL, and the bucket as s3://BUCKET"
        raise UsageError(sentence, Code.INDEX_NOT_WRITABLE, where=place, hints=[hint])
    try:
        from builder.publish.index.bucket import Bucket  # noqa: PLC0415 - s3fs is not always installed
    except ImportError as error:
        sentence = f"an object store needs a package that is not installed ({error.name})"
        hint = "run `pip install 'buildfarm[s3]'`"
        raise MissingToolError(sentence, Code.PACKAGE_MISSING, where=place, hints=[hint]) from None
    return Bucket(place)
