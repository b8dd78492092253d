"""The launcher: a process that has imported torch and nothing of a wheel, and forks a process for each import order.

The starter forks it (`builder.gate.starter`). The other end of its socket sends, for each process, the code
and its arguments as JSON with two descriptors, for standard output and error. It answers with the pid, and at the end
of the process with the wait status. One process runs at a time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
from typing import IO, Any

from builder.gate.imports.packages import execute_startup_code
from builder.gate.system import rlimits
from builder.gate.system.crash import FATAL

_MOST = 1 << 16
#: Seconds to wait for the launcher, which imports torch from a cold disk first.
_START_SECONDS = 180.0
#: Modules that stay in memory, such as the one with the stack of the crash handlers.
_kept: list[Any] = []


def serve(descriptor: int) -> None:
    """Be the launcher that serves this socket. Does not return.

    Ends without an answer if a `.pth` file has started threads: they do not survive a fork.
    """
    try:
        _keep_only(descriptor)
        sys.path.pop(0)  # the folder of the gate
        connection = socket.socket(fileno=descriptor)
        launcher, started = os.getpid(), False
        while True:
            data, outputs, _, _ = socket.recv_fds(connection, _MOST, 2)
            if data and not started:
                execute_startup_code()  # from here on the wheel's code may run: the judge has read its own files
                started = True
            if not data or rlimits.threads(launcher) > 1:
                break
            pid = os.fork()
            if not pid:
                _run(launcher, outputs, json.loads(data))
            for one in outputs:
                os.close(one)
            connection.sendall(f"{pid}\n".encode())
            connection.sendall(f"{os.waitpid(pid, 0)[1]}\n".encode())
    finally:
        os._exit(0)


def _keep_only(*descriptors: int) -> None:
    """Close every other descriptor: code of a wheel must not reach the pipes of the fork server."""
    for one in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
        if one > 2 and one not in descriptors:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(one)


def _run(launcher: int, outputs: list[int], request: dict[str, Any]) -> None:
    """Become like a new Python with these arguments after `import torch`. Does not return."""
    try:
        os.setsid()
        rlimits.exit_with_parent(launcher)
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        _keep_only()
        os.chdir(request["folder"])
        os.environ["TMPDIR"] = request["folder"]
        for number in FATAL:
            signal.signal(number, signal.SIG_DFL)
        faulthandler.enable(2)
        own = [name for name in sys.modules if name.partition(".")[0] == "builder"]
        _kept.extend(sys.modules.pop(name) for name in own)  # a wheel may have a package of this name
        gc.enable()
        sys.argv = ["-c", *request["arguments"]]
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 (the gate's own)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:  # noqa: BLE001 (an import may raise anything)
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


class Launcher:
    """The launcher from the other end of its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._line = b""  # what has arrived of the next number

    def start(self, code: str, arguments: list[str], folder: str, outputs: tuple[IO[bytes], IO[bytes]]) -> int:
        """Run this code in a new process with these outputs; return its pid. Raises OSError without a launcher."""
        request = json.dumps({"code": code, "arguments": arguments, "folder": folder}).encode()
        self._connection.settimeout(_START_SECONDS)
        socket.send_fds(self._connection, [request], [one.fileno() for one in outputs])
        return self._number()

    def wait(self, seconds: float) -> int:
        """Return the wait status of the process. Raises TimeoutError after so many seconds."""
        self._connection.settimeout(seconds)
        return self._number()

    def _number(self) -> int:
        while not self._line.endswith(b"\n"):
            part = self._connection.recv(1)
            if not part:
                raise OSError("the launcher has ended")
            self._line += part
        line, self._line = self._line, b""
        return int(line)
