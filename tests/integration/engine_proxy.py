"""A proxy of the Docker engine's socket, for DOCKER_HOST. Tests cut it; the engine keeps running."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from builder.images.engine import Engine


class EngineProxy:
    """Forwards bytes between `address` and the engine until it is cut; then nothing listens at the address."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/sock"
        self._engine = Engine()._context[1].removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/sock")
        self._listener.listen(64)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """Close all connections and accept no new ones."""
        for side in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):  # cut
            while True:
                near, _ = self._listener.accept()
                self._start(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(self._engine)
            self._open += [near, far]
            back = threading.Thread(target=_forward, args=(far, near))
            back.start()
            _forward(near, far)
            back.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def engine_proxy() -> Iterator[EngineProxy]:
    """A proxy that runs during the body."""
    with tempfile.TemporaryDirectory(
        prefix="buildfarm-"
    ) as folder:  # short, because the path of a socket has at most 107 bytes
        proxy = EngineProxy(Path(folder))
        try:
            yield proxy
        finally:
            proxy.cut()
