"""Reads the rest of a request that is refused before its body was read.

A server that closes a connection with unread bytes resets it. The client or a proxy then loses the answer (RFC 9112,
section 9.6).
"""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The rest of a refused request is read this long, seconds.
LINGER_SECONDS = 20.0


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

        await self._app(scope, reading, sending)
        if last:
            with anyio.move_on_after(LINGER_SECONDS):
                while unread:
                    await reading()
            await send(last)


def _has_body(scope: Scope) -> bool:
    """Whether the client sends a body without asking first."""
    headers = dict(scope.get("headers", ()))
    body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    return body and headers.get(b"expect", b"").lower() != b"100-continue"
