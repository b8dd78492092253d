"""What the server answers when it refuses a request, and its access log."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builder.publish.server.tokens import Token, Tokens

#: The name under which a request's token is kept for the access log.
TOKEN = "buildfarm.token"  # noqa: S105 - not a secret
#: The rest of a refused request is read this long, seconds.
_REST_SECONDS = 60.0
_LONGEST = 300


def unauthorized(sentence: str) -> HTTPException:
    """The error that asks for a token."""
    return HTTPException(401, sentence, {"WWW-Authenticate": 'Basic realm="buildfarm"'})


def token_of(request: Request, tokens: Tokens) -> Token | None:
    """The token of a request: the password of the user `__token__`, or a bearer token. None without a valid token."""
    secret = _secret(request.headers.get("authorization", ""))
    token = tokens.find(secret) if secret else None
    if token:
        request.scope[TOKEN] = token.name
    return token


def _secret(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
            return password if user == "__token__" else ""
    return ""


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


class AccessLog:
    """Answers like the app inside, and writes who asked for what; a token is never written, only its name.

    The access log of uvicorn has the query of the URL, and lacks the size, the time and the name of the token.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], object]) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        status, size, started = 500, 0, time.perf_counter()

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            with suppress(asyncio.CancelledError):  # the server stops, and waits no longer for this transfer
                await self._app(scope, receive, counted)
        finally:
            now, ms = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), round((time.perf_counter() - started) * 1000, 1)
            client = _word((scope.get("client") or ("-",))[0])
            path = _word(scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "replace"))  # without the query
            token = scope.get(TOKEN, "-")
            self._write(f"{now} {client} {_word(scope['method'])} {path} {status} {size} {ms} {token}")


def _word(text: str) -> str:
    """Text of a client without spaces and control characters, so that it cannot change the meaning of a line."""
    return "".join(char if "!" <= char <= "~" else "?" for char in text[:_LONGEST])
