"""The output of a program in a container: its end in memory, and its beginning in the log."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from builder.images.engine_errors import SDK_ERRORS

#: How much of a program's output goes to the log, in bytes.
_LOGGED_OUTPUT = 1 << 30

#: How much of the end of a program's output is kept in memory, in bytes.
_KEPT_OUTPUT = 1 << 20


class OutputReader(threading.Thread):
    """Copies a program's output to the log and keeps the end of both streams."""

    def __init__(self, output: Iterable[tuple[bytes | None, bytes | None]], log: IO[bytes]) -> None:
        """`output` yields parts of standard output and standard error."""
        super().__init__(name="container output", daemon=True)
        self._output, self._log = output, log
        self._kept = (bytearray(), bytearray())
        self._left = _LOGGED_OUTPUT

    def run(self) -> None:
        """Copy until the program ends."""
        # When the engine stops, the stream ends or raises; `_exit_state` finds out which and reports it.
        with suppress(*SDK_ERRORS, OSError, ValueError):
            for parts in self._output:
                for kept, part in zip(self._kept, parts, strict=True):
                    if part:
                        self._log.write(part[: self._left])
                        self._left -= min(self._left, len(part))
                        kept.extend(part)
                        del kept[:-_KEPT_OUTPUT]
                self._log.flush()

    def text(self, number: int) -> str:
        """The end of standard output (0) or standard error (1)."""
        return self._kept[number].decode(errors="replace")


def close_stream(output: Any) -> None:  # noqa: ANN401 (the SDK's stream, untyped)
    """Close an attached connection. The SDK's own `close` leaves its file open until garbage collection."""
    with suppress(*SDK_ERRORS, OSError):
        output.close()
    with suppress(*SDK_ERRORS, OSError, AttributeError):
        output._response.close()
