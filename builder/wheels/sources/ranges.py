"""A file on a server, read in parts with range requests, so that a large wheel need not be downloaded."""

from __future__ import annotations

import http.client
import io
import urllib.error
import urllib.request
from typing import IO, Any, cast

from builder.errors import Code, MissingToolError
from builder.masking import mask_credentials
from builder.wheels.sources.index import TIMEOUT, request_for

_ATTEMPTS = 3
_BUFFER = 1 << 20


class NoRangesError(MissingToolError):
    """The server does not answer range requests."""


class _RemoteFile(io.RawIOBase):
    """The bytes of a URL. Reads that follow each other use one connection."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._at = url, 0
        self._answer: Any = None
        self._answer_at = -1
        self._size = self._ask("bytes=0-0")

    def _ask(self, range_: str) -> int:
        """Send a request; returns the size of the complete file."""
        self._close_answer()
        request = request_for(self._url)
        request.add_header("Range", range_)
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310 - `request_for` checks the scheme
        total = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
        if answer.status != http.client.PARTIAL_CONTENT or not total.isdecimal():
            answer.close()
            raise NoRangesError(
                "the server does not answer range requests",
                Code.NETWORK_UNREACHABLE,
                where=mask_credentials(self._url),
            )
        self._answer = answer
        return int(total)

    def _close_answer(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer, self._answer_at = None, -1

    def close(self) -> None:
        self._close_answer()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - the type of io.RawIOBase is not public
        view = memoryview(buffer).cast("B")
        if self._at >= self._size or not view:
            return 0
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self._answer_at != self._at:
                    self._ask(f"bytes={self._at}-")
                count = int(self._answer.readinto(view))
                if count:
                    self._at = self._answer_at = self._at + count
                    return count
                self._answer_at = -1  # the connection broke; the next attempt opens a new one
            except (OSError, http.client.HTTPException) as error:
                self._answer_at = -1
                refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if attempt == _ATTEMPTS or refused:
                    raise _unreachable(f"the file could not be read: {error}", self._url) from None
        raise _unreachable("the connection broke again and again", self._url)


def open_remote(url: str) -> IO[bytes]:
    """A file on a server as a stream that can be searched.

    Raises NoRangesError if the server sends only complete files, MissingToolError when it cannot be reached.
    """
    try:
        return cast("IO[bytes]", io.BufferedReader(_RemoteFile(url), _BUFFER))
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(f"the file could not be read: {error}", url) from None


def _unreachable(sentence: str, url: str) -> MissingToolError:
    return MissingToolError(sentence, Code.NETWORK_UNREACHABLE, where=mask_credentials(url))
