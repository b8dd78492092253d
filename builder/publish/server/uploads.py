"""Uploads by twine, `uv publish` and `buildfarm publish`: receive the form, check it, and publish the wheel."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import BinaryIO, TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from builder.errors import UsageError
from builder.log import print_warning
from builder.proof import Proof
from builder.publish.index.entry import Entry, check_file_name
from builder.publish.index.kept import kept_of
from builder.publish.index.levels import Level, shortfalls
from builder.publish.index.new_wheel import check_statement, merged, new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import ConflictError, Repository
from builder.publish.provenance import statement_path
from builder.publish.remote.evidence import nothing_new, vouched_proofs
from builder.publish.remote.fields import EVIDENCE, MAX_EVIDENCE, PUBLISHED, UNCHANGED, UPDATED
from builder.publish.server.replies import Metrics, refusal, token_of, unauthorized
from builder.publish.server.tokens import Token, Tokens
from builder.store import Store

# Reads the form of an upload as it arrives: the file goes to disk and is hashed, and little is kept in memory.
#
# `Request.form` of Starlette keeps every text field in memory, without a limit for the form, and writes files to the
# temporary folder of the system, from which they would have to be copied.

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


#: The server waits this time for the bytes of an upload, seconds, and a second more for each so many bytes.
_GRACE, _SLOWEST = 30.0, 10_000
#: Threads that write uploads to disk and publish them; downloads have other threads.
_THREADS = 8
#: Uploads that are received at the same time.
_AT_ONCE = 64
#: Wheels with proofs whose file is checked at the same time; this takes memory.
_CHECKED_AT_ONCE = 2

_LONGEST_PROJECT = 200
_NO_TOKEN = "an upload needs a valid token: user __token__, the token as password"  # noqa: S105 - not a secret

T = TypeVar("T")
#: The folder of an index with the folders of running uploads.
FOLDER = ".uploads"
#: Attempts to make a folder while starting servers delete it again and again, which takes them milliseconds.
_ATTEMPTS = 100


class Uploads:
    """Answers uploads."""

    def __init__(
        self,
        root: Path,
        tokens: Tokens,
        metrics: Metrics,
        *,
        max_size: int,
        required: Sequence[Level] = (),
        store: Store | None = None,
    ) -> None:
        self._root = root
        self._repository = Repository(Folder(root))
        self._tokens = tokens
        self._metrics = metrics
        self._max_size = max_size
        self._required = required
        self._store = store
        self._running = 0
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self._checking = BoundedSemaphore(_CHECKED_AT_ONCE)

    async def rights(self, request: Request) -> Response:
        """What the token of a request allows, for one project or without a name for any."""
        token = token_of(request, self._tokens)
        if token is None:
            raise unauthorized(_NO_TOKEN)
        project = canonicalize_name(request.query_params.get("project", "")[:_LONGEST_PROJECT])
        rights = {
            "uploads": token.may_upload(project),
            "proofs": token.may_prove(project),
            "max_size": self._max_size,
        }
        return JSONResponse(rights, headers={"cache-control": "no-store"})

    async def upload(self, request: Request) -> Response:
        """Receive and publish one wheel. The answer to a wheel that is already published is 200."""
        try:
            token = self._allowed(request)
            self._running += 1
            self._metrics.uploads_running.set(self._running)
            try:
                outcome = await self._receive(request, token)
            finally:
                self._running -= 1
                self._metrics.uploads_running.set(self._running)
        except HTTPException as error:
            self._metrics.uploads.labels(f"refused {error.status_code}").inc()
            raise
        self._metrics.uploads.labels(outcome).inc()
        return PlainTextResponse(f"{outcome}\n")

    def _allowed(self, request: Request) -> Token:
        token = token_of(request, self._tokens)
        if token is None:
            raise unauthorized(_NO_TOKEN)
        if not token.may_upload():
            raise refusal(403, "this token does not allow uploads")
        if self._running >= _AT_ONCE:
            raise refusal(503, "too many uploads are running; try again later", {"Retry-After": "10"})
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_size + 2**24:
            raise too_large(self._max_size)
        return token

    async def _receive(self, request: Request, token: Token) -> str:
        """Write the form to disk as it arrives, then publish the wheel; what was written is deleted in any case."""
        folder, stopping = UploadFolder(self._root), False
        form = UploadForm(
            request.headers.get("content-type", ""), folder.path, self._max_size, may_prove=token.may_prove()
        )
        try:
            await self._in_thread(folder.make)
            await self._read(request, form)
            return await self._in_thread(partial(self._publish, form, token))
        except OSError as error:
            sentence = _unwritable(error)
            if not sentence:
                raise
            print_warning(f"an upload failed: {sentence}")
            raise refusal(507, sentence) from None
        except asyncio.CancelledError:
            stopping = True
            raise refusal(503, "the server stops; upload the file again later", {"Connection": "close"}) from None
        finally:
            if stopping:  # a second CancelledError would end the next `await`
                form.close()
                folder.delete()
            else:
                with anyio.CancelScope(shield=True):
                    await self._in_thread(form.close)
                    await self._in_thread(folder.delete)

    async def _read(self, request: Request, form: UploadForm) -> None:
        waited, received = 0.0, 0  # the server's own work is no delay of the client
        chunks = request.stream().__aiter__()
        try:
            while True:
                asked = time.monotonic()
                left = _GRACE + received / _SLOWEST - waited
                if left < 0:  # bytes that are here already would be read without looking at the time
                    raise TimeoutError
                with anyio.fail_after(left):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                waited += time.monotonic() - asked
                received += len(chunk)
                await self._in_thread(partial(form.write, chunk))
        except TimeoutError:
            raise refusal(408, "the upload is too slow", {"Connection": "close"}) from None
        except ClientDisconnect:
            raise refusal(400, "the client ended the connection") from None

    def _publish(self, form: UploadForm, token: Token) -> str:
        """Publish the wheel of a form; raises HTTPException with the reason why not."""
        wheel = form.finish()
        try:
            project = _check_form(form, wheel)
            if not token.may_upload(project):
                raise refusal(403, f"this token does not allow uploads of {project}")
            if form.evidence and not token.may_prove(project):
                raise no_proofs(project)
            sent = self._vouched(wheel, form.sha256.hexdigest()) if form.evidence else None
            with self._locks[project]:
                return self._add(wheel, project, form.sha256.hexdigest(), sent)
        except ConflictError as error:
            raise refusal(409, error.sentence) from None
        except UsageError as error:
            raise refusal(400, error.sentence) from None

    def _vouched(self, wheel: Path, sha256: str) -> list[Proof]:
        with self._checking:
            check_statement(wheel, sha256)
            return vouched_proofs(wheel, sha256)

    def _add(self, wheel: Path, project: str, sha256: str, sent: list[Proof] | None) -> str:
        """Publish a wheel, or add what was sent to the proofs of a published one; `sent` None: the wheel alone."""
        published = self._repository.published(project, wheel.name)
        same = published if published and published.sha256 == sha256 else None
        if same and sent is None:
            return UNCHANGED
        self._repository.refuse_other_spelling(wheel.name)
        known = self._store.proofs(sha256) if self._store else []
        kept = kept_of(self._repository.objects, same)
        proofs = merged(kept.proofs, known, sent or [])
        reasons = [reason for level in self._required for reason in shortfalls(proofs, level)]
        if same and (reasons or (nothing_new(kept.proofs, proofs) and not _new_statement(same, wheel))):
            return UNCHANGED
        if reasons:
            raise refusal(403, f"the proofs of this wheel do not show what the index requires: {reasons[0]}")
        if same:
            self._repository.add(new_wheel(wheel, proofs, kept=kept))
            return UPDATED
        self._repository.add(new_wheel(wheel, proofs), update=False)
        return PUBLISHED

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do blocking work; the other clients are served meanwhile."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


def _unwritable(error: OSError) -> str:
    """Why nothing can be written, one sentence without a path of the server; empty for another error."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk of the server is full"
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return f"the server cannot write to the folder of the index: {error.strerror}"
    return ""


def _new_statement(published: Entry, wheel: Path) -> bool:
    return statement_path(wheel).is_file() and not (published.farm and published.farm.statement)


def _check_form(form: UploadForm, wheel: Path) -> str:
    """Compare the form with the file and its name; return the normalized name of the project."""
    fields, sha256 = form.fields, form.sha256.hexdigest()
    if fields.get(":action") != "file_upload":
        raise refusal(400, "the field `:action` of the form must be file_upload")
    if fields.get("filetype", "bdist_wheel") != "bdist_wheel":
        raise refusal(400, "only wheels can be uploaded")
    if "sha256_digest" not in fields:
        raise refusal(400, "the form has no field `sha256_digest`")
    if fields["sha256_digest"].lower() != sha256:
        raise refusal(400, f"the sha256 of the file is {sha256}, but the form says {fields['sha256_digest']!r}")
    project, version, _, _ = parse_wheel_filename(wheel.name)
    if canonicalize_name(fields.get("name", "")) != project:
        raise refusal(400, f"the form says that the project is {fields.get('name', '')!r}, but the file name differs")
    try:
        same = Version(fields.get("version", "")) == version
    except InvalidVersion:
        same = False
    if not same:
        raise refusal(400, f"the form says that the version is {fields.get('version')!r}, but the file name differs")
    return project


class UploadFolder:
    """One folder, which is made later. `path` is its path."""

    def __init__(self, root: Path) -> None:
        self.path = root / FOLDER / uuid4().hex
        self._lock = -1

    def make(self) -> None:
        """Make and lock the folder; raises OSError."""
        for _ in range(_ATTEMPTS):
            self.path.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(self._lock), self.path.stat()):
                    return
            self._unlock()  # a server that started between `mkdir` and `flock` has deleted the folder
        raise FileNotFoundError(self.path)

    def delete(self) -> None:
        """Delete the folder, and unlock it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_leftovers(root: Path) -> None:
    """Delete the folders that no server locks: their servers were killed."""
    for folder in (root / FOLDER).glob("*"):
        with suppress(OSError):  # another server deletes the folder too, or a running upload has locked it
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
