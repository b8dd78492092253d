"""The form of an upload; its wheel is read while it is sent, and is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import requests

_CHUNK = 2**18


class UploadBody:
    """The body of a request: requests asks for its length, and sends its parts."""

    def __init__(self, fields: Mapping[str, str], wheel: Path) -> None:
        """The fields, and the wheel in the field `content`."""
        empty = {"content": (wheel.name, b"", "application/octet-stream")}
        form = requests.Request("POST", "http://localhost", data=dict(fields), files=empty).prepare()
        self.content_type = str(form.headers["Content-Type"])
        end = f"\r\n--{self.content_type.partition('boundary=')[2]}--\r\n".encode()
        body = form.body if isinstance(form.body, bytes) else b""
        self._start, self._end = body.removesuffix(end), end
        self._wheel, self._size = wheel, wheel.stat().st_size

    def __len__(self) -> int:
        return len(self._start) + self._size + len(self._end)

    def __iter__(self) -> Iterator[bytes]:
        yield self._start
        with self._wheel.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
        yield self._end
