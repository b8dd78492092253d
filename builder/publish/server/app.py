"""The index server as an ASGI app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builder.publish.index.levels import Level
from builder.publish.people.people_pages import FOLDER
from builder.publish.remote.fields import UPLOAD_PATH
from builder.publish.server.pages import Pages
from builder.publish.server.replies import AccessLog, Metrics, refusal
from builder.publish.server.tokens import Tokens
from builder.publish.server.uploads import Uploads
from builder.store import Store

_LONGEST_PATH = 1000
#: The rest of a refused request is read this long, seconds.
LINGER_SECONDS = 20.0


@dataclass(frozen=True)
class Settings:
    """What a server serves, and to whom."""

    #: The folder of the index.
    root: Path
    #: Whether reading needs a token. Uploads always need one.
    token_required: bool = False
    #: Of an uploaded file, bytes.
    max_size: int = 4 * 2**30
    #: What the proofs of an uploaded wheel must show.
    required: Sequence[Level] = (Level.NONE,)
    #: Has the proofs of uploaded wheels; None: they have no proofs.
    store: Store | None = None
    #: A prefix of every path, such as `/wheels`, which a proxy may remove or not.
    root_path: str = ""
    #: Whether the lines of the access log are JSON.
    json_log: bool = False


class _Place(StringConvertor):
    """A path of the index in a URL: `cu130`, or `cu130/torch2.11`."""

    regex = r"[^/]+(?:/torch[0-9]+\.[0-9]+)?"


register_url_convertor("place", _Place())


def make_app(settings: Settings, write: Callable[[str], object]) -> ASGIApp:
    """The app; `write` gets the lines of the access log."""
    metrics, tokens = Metrics(), Tokens(settings.root)
    pages = Pages(settings.root, tokens, token_required=settings.token_required)
    uploads = Uploads(
        settings.root,
        tokens,
        metrics,
        max_size=settings.max_size,
        required=settings.required,
        store=settings.store,
    )

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers={"cache-control": "no-store"})

    async def show_metrics(request: Request) -> Response:
        pages.allow(request)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    app = Starlette(
        routes=[
            Route("/", pages.home),
            Route("/health", health),
            Route("/metrics", show_metrics),
            Route(f"/{UPLOAD_PATH}/", uploads.rights, methods=["GET"]),
            Route(f"/{UPLOAD_PATH}", uploads.upload, methods=["POST"]),
            Route(f"/{UPLOAD_PATH}/", uploads.upload, methods=["POST"]),
            Route("/files/{file:path}", pages.file),
            Route(f"/{FOLDER}/{{project}}/", pages.people),
            Route("/{path:place}/", pages.list_of_projects),
            Route("/{path:place}/{project}/", pages.project),
            Route("/{path:place}", pages.without_slash),
            Route("/{path:place}/{project}", pages.without_slash),
            Route("/{path:place}/{project}/{name}", pages.project_file),
        ]
    )
    app.router.redirect_slashes = False
    guarded = _Guard(app, settings.root_path.rstrip("/"))
    return RefusedBodies(AccessLog(guarded, metrics, write, as_json=settings.json_log))


class _Guard:
    """Refuses long paths, and removes the prefix of the paths."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path"]
        if len(path) > _LONGEST_PATH:
            error = refusal(414, "the path is too long")
            await PlainTextResponse(error.detail, 414, error.headers)(scope, receive, send)
        elif self._prefix and path == self._prefix:
            await RedirectResponse(f"{path.rpartition('/')[2]}/", 301)(scope, receive, send)
        elif self._prefix and path.startswith(f"{self._prefix}/"):
            scope["path"] = path.removeprefix(self._prefix)  # in place: the log reads the name of the token from it
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class RefusedBodies:
    """Answers like the app inside. An error is sent at once, and the connection stays open until the request ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        unread, refused, last = _has_body(scope), False, None

        async def reading() -> Message:
            nonlocal unread
            message = await receive()
            unread = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal refused, last
            if message["type"] == "http.response.start":
                refused = message["status"] >= 400
            elif refused and unread and not message.get("more_body", False):
                last = {"type": "http.response.body", "body": b""}
                message = {**message, "more_body": True}
            await send(message)

        with suppress(asyncio.CancelledError):  # the server stops, and waits no longer; uvicorn closes the connection
            await self._app(scope, reading, sending)
            if last:
                with anyio.move_on_after(LINGER_SECONDS):
                    while unread:
                        await reading()
        if last:
            await send(last)


def _has_body(scope: Scope) -> bool:
    """Whether the client sends a body without asking first."""
    headers = dict(scope.get("headers", ()))
    body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    return body and headers.get(b"expect", b"").lower() != b"100-continue"
