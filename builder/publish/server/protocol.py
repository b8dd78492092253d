"""HTTP connections with time limits, and with a reason in the status line.

uvicorn waits for the headers of a request, and for a client that reads nothing, without a limit.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from builder.publish.server.replies import REASON

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
