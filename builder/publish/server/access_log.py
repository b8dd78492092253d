"""Writes a line for each request and counts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builder.publish.server.metrics import Metrics
from builder.publish.server.replies import TOKEN

_LONGEST_PATH = 300


class AccessLog:
    """Answers like the app inside, and writes who asked for what; a token is never written, only its name."""

    def __init__(self, app: ASGIApp, metrics: Metrics, write: Callable[[str], object]) -> None:
        self._app = app
        self._metrics = metrics
        self._write = write

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
            await self._app(scope, receive, counted)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.count(scope["method"], status, size, seconds)
            self._write(_line(scope, status, size, seconds))


def _line(scope: Scope, status: int, size: int, seconds: float) -> str:
    """One line: time, client, method, path as it was sent, status, bytes of the body, milliseconds, token name."""
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:_LONGEST_PATH]
    client = (scope.get("client") or ("-",))[0]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{now} {client} {scope['method']} {path} {status} {size} {seconds * 1000:.1f}ms {scope.get(TOKEN, '-')}"
