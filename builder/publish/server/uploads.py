"""Uploads by twine and `uv publish`: receive the form, compare it with the wheel, and publish the wheel."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from builder.errors import UsageError
from builder.publish.index.bar import Level, shortfalls
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import ConflictError, Repository
from builder.publish.index.wheel_limits import check_limits
from builder.publish.server.metrics import Metrics
from builder.publish.server.replies import refusal, token_of, unauthorized
from builder.publish.server.tokens import Token, Tokens
from builder.publish.server.upload_form import UploadForm, too_large
from builder.store import Store

FOLDER = ".uploads"
#: An upload may take this time, seconds, and a second more for each so many bytes.
_GRACE, _SLOWEST = 30.0, 10_000
#: Threads that write uploads to disk and publish them; downloads have other threads.
_THREADS = 8
#: Uploads that are received at the same time.
_AT_ONCE = 64

T = TypeVar("T")


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
        self._folder = root / FOLDER
        self._repository = Repository(Folder(root))
        self._tokens = tokens
        self._metrics = metrics
        self._max_size = max_size
        self._required = required
        self._store = store
        self._running = 0
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

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
            raise unauthorized("an upload needs a valid token: user __token__, the token as password")
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
        folder = self._folder / f"{uuid4().hex}.{os.getpid()}"
        form = UploadForm(request.headers.get("content-type", ""), folder, self._max_size)
        try:
            await self._in_thread(partial(folder.mkdir, parents=True))
            await self._read(request, form)
            return await self._in_thread(partial(self._publish, form, token))
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise refusal(507, "the disk of the server is full") from None
        finally:
            with anyio.CancelScope(shield=True):
                await self._in_thread(partial(_discard, form, folder))

    async def _read(self, request: Request, form: UploadForm) -> None:
        started, received = time.monotonic(), 0
        chunks = request.stream().__aiter__()
        try:
            while True:
                left = started + _GRACE + received / _SLOWEST - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                with anyio.fail_after(left):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
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
            check_limits(wheel)
            with self._locks[project]:
                return self._add(wheel, project, form.sha256.hexdigest())
        except ConflictError as error:
            raise refusal(409, error.sentence) from None
        except UsageError as error:
            raise refusal(400, error.sentence) from None

    def _add(self, wheel: Path, project: str, sha256: str) -> str:
        published = self._repository.published(project, wheel.name)
        if published and published.sha256 == sha256:
            return "already published"
        if other := _other_spelling(self._repository.objects.names(f"records/{project}"), wheel.name):
            raise refusal(409, f"the index has this wheel under the name {other}; a published file never changes")
        proofs = self._store.proofs(sha256) if self._store else []
        new = new_wheel(wheel, proofs)
        if reasons := [reason for level in self._required for reason in shortfalls(proofs, level)]:
            raise refusal(403, f"the proofs of this wheel do not show what the index requires: {reasons[0]}")
        self._repository.add(new, update=False)
        return "published"

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do blocking work; the other clients are served meanwhile."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


def remove_leftovers(root: Path) -> None:
    """Delete what uploads of servers left that no longer run; this process has not received an upload yet."""
    for folder in (root / FOLDER).glob("*.*"):
        pid = folder.name.rpartition(".")[2]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():  # in a container, the pid is often the same
            shutil.rmtree(folder, ignore_errors=True)


def _discard(form: UploadForm, folder: Path) -> None:
    form.close()
    shutil.rmtree(folder, ignore_errors=True)


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


def _other_spelling(records: Sequence[str], filename: str) -> str:
    """The published file name that means the same wheel as this one, such as `Foo_Bar-1.0-…` for `foo_bar-1.0.0-…`."""
    wanted = parse_wheel_filename(filename)
    names = (name.removesuffix(".json") for name in records if name.endswith(".whl.json"))
    return next((name for name in names if name != filename and parse_wheel_filename(name) == wanted), "")
