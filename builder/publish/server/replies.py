"""What the server answers when it refuses a request, its access log, and what `/metrics` tells Prometheus."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builder.publish.server.tokens import Token, Tokens

#: A header that never leaves the server: `run.py` makes it the text of the status line, which twine prints.
REASON = "buildfarm-reason"
_LONGEST_REASON = 300
#: The name under which a request's token is kept for the access log.
TOKEN = "buildfarm.token"  # noqa: S105 - not a secret


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """The error that answers a request with this status and this sentence."""
    reason = "".join(char if " " <= char <= "~" else "?" for char in sentence)[:_LONGEST_REASON]
    return HTTPException(status, f"{sentence}\n", {REASON: reason, **(headers or {})})


def unauthorized(sentence: str) -> HTTPException:
    """The error that asks for a token."""
    return refusal(401, sentence, {"WWW-Authenticate": 'Basic realm="buildfarm"'})


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
        try:
            user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return password if user == "__token__" else ""
    return ""


# A line for each request, and what `/metrics` tells Prometheus.
#
# The access log of uvicorn has the query of the URL, and lacks the size, the time and the name of the token.

_LONGEST = 300
_METHODS = {"GET", "HEAD", "POST"}


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "buildfarm_requests", "Requests by method and status.", ["method", "status"], registry=self._registry
        )
        self._bytes = Counter("buildfarm_response_bytes", "Bytes of response bodies.", registry=self._registry)
        self._seconds = Histogram(
            "buildfarm_request_seconds", "Seconds from a request to its last byte.", registry=self._registry
        )
        #: By outcome: `published`, `already published`, or `refused` with the status.
        self.uploads = Counter("buildfarm_uploads", "Uploads by outcome.", ["outcome"], registry=self._registry)
        self.uploads_running = Gauge("buildfarm_uploads_running", "Uploads now.", registry=self._registry)

    def count(self, method: str, status: int, size: int, seconds: float) -> None:
        """Count a request; `size` is the bytes of its answer."""
        self._requests.labels(method if method in _METHODS else "other", str(status)).inc()
        self._bytes.inc(size)
        self._seconds.observe(seconds)

    def text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class AccessLog:
    """Answers like the app inside, and writes who asked for what; a token is never written, only its name."""

    def __init__(self, app: ASGIApp, metrics: Metrics, write: Callable[[str], object], *, as_json: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._write = write
        self._line = json.dumps if as_json else _line

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
            self._write(self._line(_facts(scope, status, size, seconds)))


def _facts(scope: Scope, status: int, size: int, seconds: float) -> dict[str, object]:
    """What the line says. `path` is the path as it was sent, without the query; `bytes` is the size of the body."""
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "client": _word((scope.get("client") or ("-",))[0]),
        "method": _word(scope["method"]),
        "path": _word(scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "replace")),
        "status": status,
        "bytes": size,
        "ms": round(seconds * 1000, 1),
        "token": scope.get(TOKEN, "-"),
    }


def _word(text: str) -> str:
    """Text of a client without spaces and control characters, so that it cannot change the meaning of a line."""
    return "".join(char if "!" <= char <= "~" else "?" for char in text[:_LONGEST])


def _line(facts: dict[str, object]) -> str:
    return " ".join(map(str, facts.values()))
