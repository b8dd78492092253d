"""Opens the place that a command names: a folder or a bucket."""

from __future__ import annotations

from pathlib import Path

from builder.errors import MissingToolError, UsageError
from builder.publish.index.objects.folder import Folder
from builder.publish.index.objects.protocol import Objects


def folder_of(place: str) -> Path | None:
    """The folder that `DIR` names; None for a URL."""
    return None if "://" in place else Path(place)


def url_of(place: str) -> str:
    """The URL of the root of an index in a folder, with a final slash; empty for an index in a bucket."""
    return f"{folder.resolve().as_uri()}/" if (folder := folder_of(place)) else ""


def open_objects(place: str) -> Objects:
    """The objects in a folder or in `s3://BUCKET/PREFIX`.

    Raises UsageError for a different URL or a bucket that does not exist, and MissingToolError without s3fs or without
    an answer of the object store.
    """
    if folder := folder_of(place):
        return Folder(folder)
    if place.startswith(("http://", "https://")):
        raise UsageError(
            "of all commands, only `buildfarm publish --to URL` changes an index through its server",
            where=place,
            hints=["run the command on the machine of the server, with the folder that `buildfarm serve` serves"],
        )
    if not place.startswith("s3://"):
        raise UsageError(
            "an index can be changed in a folder or in s3:// only",
            where=place,
            hints=["most object stores speak S3: name the server in AWS_ENDPOINT_URL, and the bucket as s3://BUCKET"],
        )
    try:
        from builder.publish.index.objects.bucket import Bucket  # noqa: PLC0415 - s3fs is not always installed
    except ImportError as error:
        raise MissingToolError(
            f"an object store needs a package that is not installed ({error.name})",
            where=place,
            hints=["run `pip install 'buildfarm[s3]'`"],
        ) from None
    return Bucket(place)
