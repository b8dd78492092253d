"""Reads the form of an upload as it arrives: the file goes to disk and is hashed, and little is kept in memory."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import BinaryIO

from packaging.utils import parse_wheel_filename
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from builder.publish.server.replies import refusal

#: The fields that the server reads; the others describe the wheel as its METADATA does.
_FIELDS = {":action", "name", "version", "filetype", "sha256_digest"}
_LONGEST_FIELD = 1000
#: Room for the other fields, such as the description, bytes.
_FORM_SIZE = 2**24
#: The files beside a wheel have longer names, and a file system allows 255 bytes.
_LONGEST_NAME = 200
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.whl")


class UploadForm:
    """The form of one upload. Every method may block, and raises HTTPException for a form that is not accepted.

    Attributes:
        fields: the form's fields that matter, by name.
        file: the uploaded file, or None.
        sha256: of the file's bytes so far.

    """

    def __init__(self, content_type: str, folder: Path, max_size: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise refusal(415, "an upload is a form of the type multipart/form-data")
        self.fields: dict[str, str] = {}
        self.file: Path | None = None
        self.sha256 = hashlib.sha256()
        self._folder = folder
        self._max_size = max_size
        self._size = self._received = 0
        self._stream: BinaryIO | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._field = ""
        self._complete = False
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_begin": lambda: self._headers.append((b"", b"")),
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise refusal(400, f"the form cannot be read: {error}") from None

    def write(self, data: bytes) -> None:
        """Read the next bytes of the form."""
        self._received += len(data)
        if self._received > self._max_size + _FORM_SIZE:
            raise too_large(self._max_size)
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise refusal(400, f"the form cannot be read: {error}") from None

    def finish(self) -> Path:
        """The uploaded file of a complete form."""
        if not self._complete:
            raise refusal(400, "the form is not complete")
        if self.file is None:
            raise refusal(400, "the form has no file; the field `content` holds it")
        return self.file

    def close(self) -> None:
        """Close the file."""
        if self._stream:
            self._stream.close()
            self._stream = None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        name, value = self._headers[-1]
        self._headers[-1] = (name + data[start:end].lower(), value)

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        name, value = self._headers[-1]
        self._headers[-1] = (name, value + data[start:end])

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(dict(self._headers).get(b"content-disposition"))
        self._field = options.get(b"name", b"").decode(errors="replace")
        if self._field == "content":
            self._open(options.get(b"filename", b"").decode(errors="replace"))
        elif self._field in _FIELDS:
            self.fields[self._field] = ""

    def _open(self, name: str) -> None:
        if self.file is not None:
            raise refusal(400, "the form has two files")
        if not _FILE_NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
            raise refusal(400, "only wheels can be uploaded, with a file name of up to 200 characters")
        try:
            parse_wheel_filename(name)
        except ValueError as error:
            raise refusal(400, str(error)) from None
        self.file = self._folder / name
        self._stream = self.file.open("xb")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._stream:
            self._size += end - start
            if self._size > self._max_size:
                raise too_large(self._max_size)
            self._stream.write(data[start:end])
            self.sha256.update(data[start:end])
        elif self._field in _FIELDS:
            self.fields[self._field] += data[start:end].decode(errors="replace")
            if len(self.fields[self._field]) > _LONGEST_FIELD:
                raise refusal(400, f"the field `{self._field}` is too long")

    def _on_part_end(self) -> None:
        self.close()
        self._field = ""

    def _on_end(self) -> None:
        self._complete = True


def too_large(max_size: int) -> Exception:
    """The error for an upload above the limit."""
    return refusal(413, f"the file is larger than {max_size} bytes, the limit of this server")
