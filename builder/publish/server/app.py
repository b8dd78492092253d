"""The index server: its app, and how it runs until a signal stops it."""

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from builder.errors import Code, UsageError
from builder.publish.index.levels import Level
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server.client import UPLOAD_PATH
from builder.publish.server.pages import Pages
from builder.publish.server.tokens import Tokens
from builder.publish.server.uploads import Uploads

#: Time that running transfers have after a signal, seconds.
_GRACE = 10
_IDLE_SECONDS = 30
#: The rest of a refused request is read this long, seconds.
_REST_SECONDS = 600.0


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
