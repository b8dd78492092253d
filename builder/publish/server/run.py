"""Runs the index server until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from builder.errors import Code, UsageError
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server.replies import REASON
from builder.publish.server.uploads import remove_leftovers

# HTTP connections with time limits, and with a reason in the status line.
#
# uvicorn waits for the headers of a request, and for a client that reads nothing, without a limit.

#: Time for the headers of a request, and for the rest of a request that was refused; seconds.
HEADER_SECONDS = 20.0
#: Time in which a client must read something of an answer, seconds.
STALL_SECONDS = 60.0


class BoundedProtocol(H11Protocol):
    """A connection that a slow client cannot hold open."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _Connection(h11.SERVER, self.config.h11_max_incomplete_event_size or 2**14)
        self._waiting: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the headers of a request are complete."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._cancel()

    def on_response_complete(self) -> None:
        """Start to wait for the next request, unless the client has sent it already."""
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before:
            self._wait()

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read something."""
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._cancel()
        if self._stalled:
            self._stalled.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._cancel()
        self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _cancel(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None


class _Connection(h11.Connection):
    """Sends the header REASON as the text of the status line: twine prints this text, and not the body."""

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # h11 has an overload for each event
        """The bytes of an event."""
        if isinstance(event, h11.Response):
            reason = next((value for name, value in event.headers if name == REASON.encode()), None)
            if reason is not None:
                headers = [
                    (name, value) for name, value in event.headers.raw_items() if name.lower() != REASON.encode()
                ]
                event = h11.Response(status_code=event.status_code, headers=headers, reason=reason)
        return super().send(event)


#: Time that running transfers have after a signal, seconds.
_GRACE = 10
_IDLE_SECONDS = 30
_MOST_CONNECTIONS = 2000


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free port. Raises UsageError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on port {port}: {reason}", Code.PORT_NOT_USABLE, where=host) from None
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
    remove_leftovers(root)
    Thread(target=folder.remove_leftovers, daemon=True).start()
    return projects


def run(
    app: ASGIApp, listening: socket.socket, *, tls: tuple[Path, Path] | None = None, proxy_headers: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT; running transfers then have 10 seconds to finish.

    `tls` are the certificate and its key. With `proxy_headers`, the address of a client is what a proxy on this machine
    says; the variable FORWARDED_ALLOW_IPS names other proxies.
    """
    certificate, key = tls or (None, None)
    logging.getLogger("uvicorn.error").addFilter(_in_plain_words)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the answer to the client says what is wrong
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        proxy_headers=proxy_headers,
        limit_concurrency=_connections(),
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    _Server(config).run([listening])


def _in_plain_words(record: logging.LogRecord) -> bool:
    """Say in one line that transfers were cut at the end; uvicorn says it for each of them too."""
    if record.msg == "Cancel %s running task(s), timeout graceful shutdown exceeded" and isinstance(record.args, tuple):
        record.msg, record.args = f"the server stops, and {_cut(record.args[0])} cut", ()
    return record.msg != "ASGI callable returned without completing response."


def _cut(count: object) -> str:
    return "1 transfer was" if count == 1 else f"{count} transfers were"


class _Server(uvicorn.Server):
    """Ends without an error after a signal; uvicorn would raise the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield


def _connections() -> int:
    """The number of connections that the limit on open files allows, which is raised first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return _MOST_CONNECTIONS if most == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, most // 3)
