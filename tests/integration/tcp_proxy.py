"""A proxy between a worker and its scheduler. Tests cut it, or let it withhold every byte for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit


class TcpProxy:
    """Forwards bytes between `address` and a server on this machine."""

    def __init__(self, target: str) -> None:
        """`target` is the address of the server, tcp://127.0.0.1:PORT."""
        self._target = urlsplit(target).port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def withhold(self) -> None:
        """Keep every byte; the connections stay open."""
        self._flows.clear()

    def cut(self) -> None:
        """Close every connection, and each new one at once."""
        self._refuses = True
        self._close()

    def restore(self) -> None:
        """Forward again, also what was withheld."""
        self._refuses = False
        self._flows.set()

    def end(self) -> None:
        """Close everything."""
        self.cut()
        self._flows.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for side in (self._listener, *self._open):
            side.close()

    def _close(self) -> None:
        for side in self._open:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                near, _ = self._listener.accept()
                if self._refuses:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    self._start(self._forward, *pair)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(target: str) -> Iterator[TcpProxy]:
    """A proxy that runs during the body."""
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.end()
