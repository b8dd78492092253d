"""The index server: its app, uploads by twine, `uv publish` and `buildfarm publish`, and its run until a signal."""

import asyncio
import errno
import logging
import socket
import ssl
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from builder.errors import Code, UsageError
from builder.formats import sha256_of
from builder.log import print_line, print_warning
from builder.proof import Check, Proof, Verdict
from builder.proofs.claimed_cells import CellClaims, foreign_claim, provided_by_torch
from builder.proofs.static.claim import make_proof
from builder.publish.index.levels import Level, sentence, shortfalls
from builder.publish.index.new_wheel import check_file_name, check_statement, merged, new_wheel, proofs_beside
from builder.publish.index.objects import Folder
from builder.publish.index.pages import project_of
from builder.publish.index.repository import ConflictError, Repository
from builder.publish.provenance import statement_path
from builder.publish.server.client import (
    EVIDENCE,
    MAX_EVIDENCE,
    PUBLISHED,
    UNCHANGED,
    UPDATED,
    UPLOAD_PATH,
    nothing_new,
)
from builder.publish.server.pages import Pages, token_of, unauthorized
from builder.publish.server.tokens import Token, Tokens
from builder.wheelfile.archive import wheel_fault
from builder.wheelfile.facts import facts_of, open_wheel

#: Time that running transfers have after a signal, seconds.
_GRACE = 10
_IDLE_SECONDS = 30
#: The rest of a refused request is read this long, seconds.
_REST_SECONDS = 600.0
#: Bytes of an uploaded file; the limit of an index for smaller ones is that of a proxy in front of the server.
MAX_SIZE = 4 * 2**30
#: Room for the other fields, such as the description, bytes.
_FORM_SIZE = 2**24
#: A wheel, its proofs, its provenance, and a signature, which is not used.
_MOST_FILES = 4
_MOST_FIELDS = 1000
#: Threads that check and publish uploads, which takes memory; downloads have other threads.
_THREADS = 4
#: Errors of a disk that is full or cannot be written.
_NOT_WRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def make_app(root: Path, *, token_required: bool = False, required: Sequence[Level] = (Level.NONE,)) -> ASGIApp:
    """The app for the index in the folder `root`.

    With `token_required`, reading needs a token too. The proofs that come with an uploaded wheel must reach the levels
    `required`.
    """
    tokens = Tokens(root)
    pages, uploads = Pages(root, tokens, token_required), Uploads(root, tokens, required)
    routes = [
        Route("/health", lambda _: PlainTextResponse("ok\n", headers={"cache-control": "no-store"})),
        Route(f"/{UPLOAD_PATH}", uploads.upload, methods=["POST"]),
        Route(f"/{UPLOAD_PATH}/", uploads.upload, methods=["POST"]),
        Route("/files/{file:path}", pages.file),
        Route("/{path:path}", pages.page),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: answer})
    app.router.redirect_slashes = False

    async def ended(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):  # the server stops, and waits no longer for this transfer
            await app(scope, receive, send)

    return ended


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free port. Raises UsageError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on port {port}: {reason}", Code.VALUE_INVALID, where=host) from None
    # asyncio sets this only for sockets that name their protocol. Without it, each answer waits 40 ms for the client.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def check_tls(certificate: Path, key: Path) -> None:
    """Raise UsageError if these files are not a certificate and its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # SSLError is an OSError too
        raise UsageError(
            f"the certificate or its key cannot be read: {error}", Code.CERTIFICATE_NOT_USABLE, where=str(certificate)
        ) from None


def finish_interrupted(root: Path) -> list[str]:
    """Finish what killed processes left undone; return the projects whose pages were written.

    Temporary files are searched in the background, because an index can have many folders.
    """
    folder = Folder(root)
    projects = Repository(folder).finish_interrupted()
    Thread(target=folder.remove_leftovers, daemon=True).start()
    return projects


def run(app: ASGIApp, listening: socket.socket, *, certificate: Path | None = None, key: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; running transfers then have 10 seconds to finish.

    stdout has a line for each request. The address of a client is what a proxy on this machine says; the variable
    FORWARDED_ALLOW_IPS names other proxies.
    """
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("uvicorn.access").addHandler(lines)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    logging.raiseExceptions = False  # a reader of stdout that has ended does not end the server
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the answer to the client says what is wrong
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        server_header=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    with suppress(KeyboardInterrupt):  # after its end, uvicorn raises the signal that ended it
        uvicorn.Server(config).run([listening])


async def answer(request: Request, error: Exception) -> Response:
    """Answer a refused request after its rest: most programs read no answer before they have sent everything."""
    status, sentence, headers = 500, "", None
    if isinstance(error, HTTPException):
        status, sentence, headers = error.status_code, error.detail, error.headers
    if status != 503 and "expect" not in request.headers:
        with anyio.move_on_after(_REST_SECONDS), suppress(ClientDisconnect, RuntimeError):  # read completely, by a form
            async for _ in request.stream():
                pass
    return PlainTextResponse(f"{sentence}\n", status, headers)


class Uploads:
    """Answers uploads."""

    def __init__(self, root: Path, tokens: Tokens, required: Sequence[Level]) -> None:
        """The arguments are explained at `make_app`."""
        self._repository = Repository(Folder(root))
        self._tokens, self._required = tokens, required
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    async def upload(self, request: Request) -> Response:
        """Receive and publish one wheel. The answer to a wheel that is already published is 200."""
        token = token_of(request, self._tokens)
        if token is None:
            raise unauthorized("an upload needs a valid token: user __token__, the token as password")
        self._check_request(request, token)
        try:
            # The form puts the files into unnamed files of the system. The other clients are served meanwhile.
            async with request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS) as form:
                answer = await anyio.to_thread.run_sync(self._publish, form, token, limiter=self._threads)
            print_line(f"an upload with the token {token.name}: {answer}")
            return PlainTextResponse(f"{answer}\n")
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            sentence = f"the server cannot write to the folder of the index: {error.strerror}"
            print_warning(f"an upload failed: {sentence}")
            raise HTTPException(507, sentence) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client ended the connection") from None
        except asyncio.CancelledError:
            raise HTTPException(503, "the server stops; upload the file again later") from None

    def _check_request(self, request: Request, token: Token) -> None:
        """Raise HTTPException for a request whose form is not read."""
        if not token.may("upload"):
            raise HTTPException(403, "this token does not allow uploads")
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise HTTPException(415, "an upload is a form of the type multipart/form-data")
        length = request.headers.get("content-length", "")
        if not length.isdigit():
            raise HTTPException(411, "an upload needs the header Content-Length")
        _check_size(int(length) - _FORM_SIZE)

    def _publish(self, form: FormData, token: Token) -> str:
        """Publish the wheel of a form; raises HTTPException with the reason why not."""
        found = [(field, value) for field, value in form.multi_items() if isinstance(value, UploadFile)]
        files = dict(found)
        if len(files) < len(found):
            raise HTTPException(400, "the form has two files in one field")
        if "content" not in files:
            raise HTTPException(400, "the form has no file; the field `content` holds it")
        _check_size(files["content"].size or 0)
        try:
            name = files["content"].filename or ""
            check_file_name(name)
            project = project_of(name)
            if not token.may("upload", project):
                raise HTTPException(403, f"this token does not allow uploads of {project}")
            if EVIDENCE.keys() & files.keys() and not token.may("prove", project):
                raise HTTPException(
                    403,
                    f"this token does not allow proofs of {project}; the owner of the index makes one with"
                    " `buildfarm token add DIR --name NAME --scope prove`",
                )
            with TemporaryDirectory(prefix="buildfarm-upload-") as folder:
                # Links to the unnamed files that the form was read into, so a killed server leaves nothing of them.
                wheel = Path(folder, name)
                wheel.symlink_to(f"/proc/self/fd/{files['content'].file.fileno()}")
                for field in EVIDENCE.keys() & files.keys():
                    if (files[field].size or 0) > MAX_EVIDENCE:
                        raise HTTPException(413, f"the field `{field}` is larger than {MAX_EVIDENCE} bytes, the limit")
                    beside = wheel.with_name(f"{name}{EVIDENCE[field]}")
                    beside.symlink_to(f"/proc/self/fd/{files[field].file.fileno()}")
                sha256, sent = sha256_of(wheel), None
                if str(form.get("sha256_digest")).lower() != sha256:
                    raise HTTPException(400, f"the sha256 of the file is {sha256}, but `sha256_digest` differs")
                if EVIDENCE.keys() & files.keys():
                    check_statement(wheel, sha256)
                    sent = vouched_proofs(wheel, sha256)
                with self._locks[project]:
                    return self._add(wheel, project, sha256, sent)
        except ConflictError as error:
            raise HTTPException(409, error.sentence) from None
        except UsageError as error:
            raise HTTPException(400, error.sentence) from None

    def _add(self, wheel: Path, project: str, sha256: str, sent: list[Proof] | None) -> str:
        """Publish a wheel, or add what was sent to the proofs of a published one; `sent` None: the wheel alone."""
        published = self._repository.published(project, wheel.name)
        same = published if published and published.sha256 == sha256 else None
        if same and sent is None:
            return UNCHANGED
        self._repository.refuse_other_spelling(wheel.name)
        kept = self._repository.kept(wheel.name, sha256)
        proofs = merged(kept.proofs, sent or [])
        reasons = [sentence(proof) for level in self._required for proof in shortfalls(proofs, level)]
        is_new = not nothing_new(kept.proofs, proofs) or (statement_path(wheel).is_file() and not kept.statement)
        if same and (reasons or not is_new):
            return UNCHANGED
        if reasons:
            raise HTTPException(403, f"the proofs of this wheel do not show what the index requires: {reasons[0]}")
        if same:
            self._repository.add(new_wheel(wheel, proofs, kept=kept))
            return UPDATED
        self._repository.add(new_wheel(wheel, proofs), update=False)
        return PUBLISHED


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise HTTPException(413, f"the file is larger than {MAX_SIZE} bytes, the limit of this server")


def vouched_proofs(wheel: Path, sha256: str) -> list[Proof]:
    """The proofs beside an uploaded wheel, with the server's own verdict on every check of the file.

    The verdicts in the cells are those of the uploader, whose token vouches for them. Of the checks of the file, only
    two verdicts of the uploader count: that a check failed, and that the recipe accepts the finding of a check that
    fails here too. No proofs beside the wheel: none.

    Raises UsageError for a wheel or proofs that cannot be read, for proofs of a different file, and for proofs in a
    cell that the wheel itself excludes.
    """
    sent = proofs_beside(wheel, sha256)
    if not sent:
        return []
    from builder.proofs.file_checks import static_proofs  # noqa: PLC0415 - auditwheel loads slowly

    with open_wheel(wheel) as archive:
        facts, fault = facts_of(archive, sha256), wheel_fault(archive)
    cells = sorted({proof.cell for proof in sent if proof.cell})
    for cell in cells:
        if why := CellClaims(facts).why_not(cell):
            raise UsageError(f"there are proofs in {cell}, but {why.reason}", Code.PROOFS_NOT_USABLE)
    # Whether the wheel must contain GPU code is in the recipe, which the server does not have.
    claim = replace(foreign_claim(facts, cells), cuda_required=False)
    own = {proof.check: proof for proof in static_proofs(facts, claim, provided_by_torch(facts), {})}
    if fault:
        own[Check.RECORD] = make_proof(facts, Check.RECORD, [fault])
    for proof in sent:
        if proof.cell is None and (proof.check in own or proof.verdict is Verdict.FAILED):
            own[proof.check] = _weighed(proof, own.get(proof.check))
    return [*own.values(), *(proof for proof in sent if proof.cell)]


def _weighed(sent: Proof, own: Proof | None) -> Proof:
    """One verdict of two: that of the uploader, if it is not better than that of this server."""
    if own is None:
        return sent
    if own.verdict is Verdict.FAILED and sent.verdict is not Verdict.ACCEPTED:
        return own
    # The uploader also knows the claimed architectures. The code in the libraries is a fact of the file.
    facts = {key: value for key, value in own.evidence.items() if key == "libraries"}
    return replace(sent, evidence={**sent.evidence, **facts})
