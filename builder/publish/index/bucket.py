"""An index in a bucket of an object store that speaks S3."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError, ProfileNotFound
from s3fs.core import S3_RETRYABLE_ERRORS

from builder.errors import BuildfarmError, Code, MissingToolError, UsageError
from builder.publish.index.pages import served_as
from builder.untrusted import parts_of

#: Bytes of a part of an upload or download, and parts that are sent at the same time.
_PART, _PARTS_AT_ONCE = 2**24, 4
#: Objects that are read at the same time.
_READS_AT_ONCE = 32
#: Folders whose objects are kept in memory for the next read.
_FOLDERS_KEPT = 4
#: Retries while somebody else writes the same name.
_ATTEMPTS = 20
#: A store that honours conditional writes refuses to replace this object.
_PROBE = ".conditional-writes"
_CONFIG = {"connect_timeout": 10, "read_timeout": 60, "retries": {"mode": "standard", "total_max_attempts": 3}}
_NO_KEYS = (NoCredentialsError, PartialCredentialsError, ProfileNotFound)


class Bucket:
    """Objects below a prefix of a bucket: `s3://BUCKET/PREFIX`."""

    def __init__(self, url: str) -> None:
        """Connect; raises UsageError if there is no such bucket, MissingToolError if the store does not answer."""
        self._bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
        if not self._bucket:
            raise UsageError("name a bucket: s3://BUCKET or s3://BUCKET/PREFIX", Code.VALUE_INVALID, where=url)
        self._prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{self._bucket}/{self._prefix}"
        self._last: dict[str, dict[str, tuple[str, bytes]]] = {}
        with self._explained():
            # Listings must never be stale, and an event loop of its own belongs to this process only.
            self._fs: Any = fsspec.filesystem(
                "s3", config_kwargs=_CONFIG, use_listings_cache=False, skip_instance_cache=True
            )
            try:
                self._fs.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
            except FileNotFoundError:
                raise UsageError("the object store has no bucket of this name", Code.NO_INDEX, where=self.url) from None

    def read(self, name: str) -> bytes:
        """Contents of an object; raises FileNotFoundError."""
        with self._explained():
            return bytes(self._fs.cat_file(self._key(name), max_concurrency=1))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A copy of an object in a temporary file; raises FileNotFoundError."""
        with TemporaryDirectory(prefix="buildfarm-") as folder:
            copy = Path(folder, name.rpartition("/")[2])
            with self._explained():
                self._fs.get_file(self._key(name), str(copy))
            yield copy

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Contents of every object directly below a folder; of the last folders, only what changed is read again."""
        tags = {name: tag for name, tag in self._list(folder).items() if tag is not None}
        kept = self._last.get(folder, {})
        found = {name: data for name, (tag, data) in kept.items() if tag and tag == tags.get(name)}
        missing = {self._key(f"{folder}/{name}"): name for name in tags.keys() - found.keys()}
        with self._explained():
            # An object that was deleted after the listing gives an error in place of its contents.
            options = {"on_error": "return", "batch_size": _READS_AT_ONCE, "max_concurrency": 1}
            for key, data in self._fs.cat(sorted(missing), **options).items() if missing else ():
                if isinstance(data, bytes):
                    found[missing[key]] = data
                elif not isinstance(data, FileNotFoundError):
                    raise data
        others = [(other, read) for other, read in self._last.items() if other != folder]
        # A new dictionary: other threads may read the old one.
        self._last = dict([*others, (folder, {name: (tags[name], found[name]) for name in found})][-_FOLDERS_KEPT:])
        return dict(sorted(found.items()))

    def names(self, folder: str) -> list[str]:
        """The last names of the objects and folders directly below a folder, without hidden ones."""
        return sorted(self._list(folder))

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly below a folder, without hidden ones."""
        return sorted(name for name, tag in self._list(folder).items() if tag is None)

    def write(self, name: str, data: bytes) -> None:
        """Write or replace an object."""
        kind, kept = served_as(name)
        with self._explained():
            self._fs.pipe_file(self._key(name), data, ContentType=kind, CacheControl=kept)

    def create(self, name: str, data: bytes | Path) -> bool:
        """Write an object unless it exists; of several processes, one succeeds.

        Raises UsageError if the object store does not honour conditional writes.
        """
        if self.exists(name):
            return False
        if not self._is_conditional:
            raise UsageError(
                "this object store ignores the header If-None-Match, so two publishers could replace each other's"
                " wheels",
                Code.INDEX_NOT_WRITABLE,
                where=self.url,
                hints=["use a newer version of the object store, or publish to a folder"],
            )
        kind, kept = served_as(name)
        return self._create(self._key(name), data, ContentType=kind, CacheControl=kept)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        with self._explained():
            self._fs.rm_file(self._key(name))

    def exists(self, name: str) -> bool:
        """Whether an object of this name exists."""
        with self._explained():
            return bool(self._fs.exists(self._key(name)))

    def age(self, name: str) -> float:
        """Seconds since an object was written; raises FileNotFoundError."""
        with self._explained():
            return time.time() - float(self._fs.modified(self._key(name)).timestamp())

    def _list(self, folder: str) -> dict[str, str | None]:
        """The last names directly below a folder: objects with their ETag, maybe "", and folders with None."""
        with self._explained(), suppress(FileNotFoundError):
            found = self._fs.ls(self._key(folder), detail=True)
            tags = {one["name"].rpartition("/")[2]: one.get("ETag", "") for one in found if one["type"] != "directory"}
            tags |= {one["name"].rpartition("/")[2]: None for one in found if one["type"] == "directory"}
            return {name: tag for name, tag in tags.items() if name and not name.startswith(".")}
        return {}

    @cached_property
    def _is_conditional(self) -> bool:
        """Whether the object store refuses to replace an object. The object that shows this is kept."""
        key, text = f"{self._bucket}/{self._prefix}{_PROBE}", b"buildfarm tests here that no object is replaced.\n"
        return not (self._create(key, text) and self._create(key, text))

    def _create(self, key: str, data: bytes | Path, **headers: str) -> bool:
        parts = {"chunksize": _PART, "max_concurrency": _PARTS_AT_ONCE} if isinstance(data, Path) else {}
        write = self._fs.put_file if isinstance(data, Path) else self._fs.pipe_file
        arguments = (str(data), key) if isinstance(data, Path) else (key, data)
        with self._explained():
            for attempt in range(_ATTEMPTS):
                try:
                    write(*arguments, mode="create", **parts, **headers)
                    return True
                except OSError as error:
                    response = getattr(error.__cause__, "response", None) or {}
                    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
                    if status == HTTPStatus.PRECONDITION_FAILED:
                        return False
                    if status != HTTPStatus.CONFLICT:  # somebody else is writing the same name
                        raise
                    time.sleep(0.1 * attempt)
        raise BuildfarmError(
            "others write the same object again and again", Code.NETWORK_UNREACHABLE, where=f"s3://{key}"
        )

    def _key(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{'/'.join(parts_of(name))}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the object store into one sentence; FileNotFoundError stays."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (*_NO_KEYS, PermissionError) as error:
            refused = isinstance(error, PermissionError)
            what = "the object store refuses the request" if refused else "there are no keys for the object store"
            hints = [
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                "the keys must be allowed to list the bucket, and to read, write and delete objects",
            ]
            raise UsageError(f"{what}: {error}", Code.LOGIN_REFUSED, where=self.url, hints=hints) from None
        except (OSError, BotoCoreError, *S3_RETRYABLE_ERRORS) as error:
            raise MissingToolError(
                f"the object store does not answer: {error}",
                Code.NETWORK_UNREACHABLE,
                where=self.url,
                hints=["run the command again; it continues", "AWS_ENDPOINT_URL names a server other than Amazon's"],
            ) from None
