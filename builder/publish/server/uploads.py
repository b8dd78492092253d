"""Uploads by twine, `uv publish` and `buildfarm publish`: receive the form, check it, and publish the wheel."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from builder.errors import UsageError
from builder.proof import Proof
from builder.publish.index.entry import Entry
from builder.publish.index.levels import Level, shortfalls
from builder.publish.index.new_wheel import merged, new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import ConflictError, Repository
from builder.publish.provenance import statement_path
from builder.publish.remote.evidence import check_statement, earlier_proofs, nothing_new, vouched_proofs
from builder.publish.remote.fields import PUBLISHED, UNCHANGED, UPDATED
from builder.publish.server.access_log import Metrics
from builder.publish.server.replies import refusal, token_of, unauthorized
from builder.publish.server.tokens import Token, Tokens
from builder.publish.server.upload_form import UploadForm, no_proofs, too_large
from builder.store import Store

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
        rights = {"uploads": token.may_upload(project), "proofs": token.may_prove(project), "max_size": self._max_size}
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
        folder = UploadFolder(self._root)
        form = UploadForm(
            request.headers.get("content-type", ""), folder.path, self._max_size, may_prove=token.may_prove()
        )
        try:
            await self._in_thread(folder.make)
            await self._read(request, form)
            return await self._in_thread(partial(self._publish, form, token))
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise refusal(507, "the disk of the server is full") from None
        finally:
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
        earlier = earlier_proofs(self._repository.objects, same) if same else []
        proofs = merged(earlier, known, sent or [])
        reasons = [reason for level in self._required for reason in shortfalls(proofs, level)]
        if same and (reasons or (nothing_new(earlier, proofs) and not _new_statement(same, wheel))):
            return UNCHANGED
        if reasons:
            raise refusal(403, f"the proofs of this wheel do not show what the index requires: {reasons[0]}")
        if same:
            self._repository.add(new_wheel(wheel, proofs, origin=self._keep_statement(same, wheel)))
            return UPDATED
        self._repository.add(new_wheel(wheel, proofs), update=False)
        return PUBLISHED

    def _keep_statement(self, published: Entry, wheel: Path) -> str:
        """Put the statement of a published wheel beside its copy, unless one was sent; return where it came from."""
        farm, path = published.farm, statement_path(wheel)
        if farm and farm.statement and not path.is_file():
            with suppress(FileNotFoundError):
                path.write_bytes(self._repository.objects.read(farm.statement))
        return farm.origin if farm and not path.is_file() else ""

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do blocking work; the other clients are served meanwhile."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


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
