"""Reads the form of an upload as it arrives: the file goes to disk and is hashed, and little is kept in memory.

`Request.form` of Starlette keeps every text field in memory, without a limit for the form, and writes files to the
temporary folder of the system, from which they would have to be copied.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from builder.errors import UsageError
from builder.publish.index.wheel_entry import check_file_name
from builder.publish.remote.fields import EVIDENCE, MAX_EVIDENCE
from builder.publish.server.replies import refusal

#: The fields that the server reads; the others describe the wheel as its METADATA does.
_FIELDS = {":action", "name", "version", "filetype", "sha256_digest"}
_LONGEST_FIELD = 1000
#: Room for the other fields, such as the description, bytes.
_FORM_SIZE = 2**24
_MOST_PARTS = 10_000


class UploadForm:
    """The form of one upload. Every method may block, and raises HTTPException for a form that is not accepted."""

    def __init__(self, content_type: str, folder: Path, max_size: int, *, may_prove: bool = False) -> None:
        """`may_prove` is whether the form may have proofs of some project."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise refusal(415, "an upload is a form of the type multipart/form-data")
        #: The fields that matter.
        self.fields: dict[str, str] = {}
        self.file: Path | None = None
        #: The files with proofs and provenance, by the name of their field.
        self.evidence: dict[str, Path] = {}
        #: Of the file's bytes so far.
        self.sha256 = hashlib.sha256()
        self._folder = folder
        self._max_size = max_size
        self._may_prove = may_prove
        self._size = self._received = 0
        self._stream: BinaryIO | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._field = ""
        self._parts = 0
        self._complete = False
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._on_part_begin,
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
        """The uploaded file of a complete form; its proofs and its provenance are beside it."""
        if not self._complete:
            raise refusal(400, "the form is not complete")
        if self.file is None:
            raise refusal(400, "the form has no file; the field `content` holds it")
        for field, path in self.evidence.items():
            path.rename(self.file.with_name(self.file.name + EVIDENCE[field]))
        return self.file

    def close(self) -> None:
        """Close the file."""
        if self._stream:
            self._stream.close()
            self._stream = None

    def _on_part_begin(self) -> None:
        self._headers.clear()
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise refusal(400, f"the form has more than {_MOST_PARTS} fields")

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
        elif self._field in EVIDENCE:
            self._open_evidence(self._field)
        elif self._field in _FIELDS:
            self.fields[self._field] = ""

    def _open_evidence(self, field: str) -> None:
        if not self._may_prove:
            raise no_proofs()
        if field in self.evidence:
            raise refusal(400, f"the form has two fields `{field}`")
        self.evidence[field] = self._folder / field
        self._stream, self._size = self.evidence[field].open("xb"), 0

    def _open(self, name: str) -> None:
        if self.file is not None:
            raise refusal(400, "the form has two files")
        try:
            check_file_name(name)
        except UsageError as error:
            raise refusal(400, error.sentence) from None
        self.file = self._folder / name
        self._stream, self._size = self.file.open("xb"), 0

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._stream:
            self._size += end - start
            if self._field in EVIDENCE:
                if self._size > MAX_EVIDENCE:
                    raise refusal(413, f"the field `{self._field}` is larger than {MAX_EVIDENCE} bytes, the limit")
            elif self._size > self._max_size:
                raise too_large(self._max_size)
            self._stream.write(data[start:end])
            if self._field == "content":
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


def no_proofs(project: str = "") -> Exception:
    """The error for proofs from a token that does not vouch for them."""
    return refusal(
        403,
        f"this token does not allow proofs{f' of {project}' if project else ''}; the owner of the index makes one with"
        " `buildfarm token add DIR --name NAME --scope prove`",
    )


def too_large(max_size: int) -> Exception:
    """The error for an upload above the limit."""
    return refusal(413, f"the file is larger than {max_size} bytes, the limit of this server")
