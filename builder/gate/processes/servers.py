"""The fork servers of a run from the scheduler's side: starting them, commands, events, and how they end.

Every process has its own session, so Ctrl-C reaches only the scheduler, which then ends the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.gate.outcome import IMPORT_SECONDS
from builder.gate.system import rlimits
from builder.gate.system.files import mapped_files
from builder.gate.system.process_end import tail
from builder.gate.system.process_tree import is_stopped, kill_tree

#: The roles of fork servers: of import orders, which imports torch alone; the judge, which never imports the
#: extension; and those of all other checks.
ORDERS, JUDGE, PLAIN, HEAP_CHECKS = "orders", "judge", "plain", "heap-checks"
#: The first bytes that a server gets: it may import the extension.
GO = b"go\n"
#: How often a fork server that one of its jobs killed is restarted.
RESTARTS = 6
#: Seconds that sending a command may take, and the most bytes of an incomplete event.
_SEND_SECONDS, _MOST_PENDING = 5.0, 64 << 20
_DEBUG_LIBRARY = "libc_malloc_debug.so.0"

#: Without collections of garbage, the imports of torch take less time.
#: Sets up the parent-death signal and the crash handlers before it imports torch, which takes seconds and may crash.
_START = """\
import gc, sys
gc.disable()
sys.path.insert(0, sys.argv[1])
from builder.gate.system import process_end, rlimits
rlimits.exit_with_parent(int(sys.argv[2]))
process_end.install_crash_handlers()
from builder.gate.starter import main
main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""


def start_command(root: Path, roles: Sequence[Mapping[str, Any]], scheduler: int = 0) -> list[str]:
    """Return the command line of a starter for these roles: dictionaries with the fields of `starter.Role`.

    `scheduler` is the pid of the scheduler, by default this process. With -S, Python executes no code of installed
    packages when it starts.
    """
    words = [str(root), str(scheduler or os.getpid()), json.dumps(list(roles))]
    return [sys.executable, "-I", "-X", "faulthandler", "-S", "-c", _START, *words]


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for every process: no threads at import, no CUDA context when torch counts GPUs."""
    return {**environment, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "LIBC_FATAL_STDERR_": "1"}


def heap_check_environment(environment: Mapping[str, str]) -> dict[str, str] | str:
    """Return the environment with glibc's heap checks, or the reason why they are not available."""
    checked = {**plain_environment(environment), "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "1"}
    version = os.confstr("CS_GNU_LIBC_VERSION") or ""  # "glibc 2.36"; torch has no wheels for another C library
    if [int(number) for number in re.findall(r"\d+", version)] < [2, 34]:
        return checked
    # Since 2.34 the checks are in a separate library in the folder of libc.
    for libc in sorted(path for path in mapped_files() if re.fullmatch(r"libc(\.so\.6|-[\d.]+\.so)", Path(path).name)):
        library = Path(libc).with_name(_DEBUG_LIBRARY)
        if library.is_file():
            before = environment.get("LD_PRELOAD")
            checked["LD_PRELOAD"] = f"{library}:{before}" if before else str(library)
            return checked
    where = f"{_DEBUG_LIBRARY} is not in the folder of libc (Debian: package libc6)"
    return f"glibc's heap checks are not installed: {where}"


class _Child:
    """A child of this process: the starter, or a fork of it, which this process, a subreaper, has inherited."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def ended(self, seconds: float = 0.0) -> int | None:
        """Return its wait status, or None if it still runs after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # it has ended, and somebody else knows how
                pid, status = self.pid, 1 << 8
            if pid:
                self.status = status
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.005)
        return self.status


class Server:
    """A fork server from the scheduler's side: sends commands, reads events."""

    def __init__(self, role: str, folder: Path) -> None:
        """`folder` is the directory for its files. `Servers.start` starts it."""
        self.role, self.folder, self._log = role, folder, folder / "log"
        self.started = time.monotonic()
        self._commands, self._commands_read = socket.socketpair()
        self._commands.settimeout(_SEND_SECONDS)  # a server that is stopped does not stop the scheduler
        self.events, self._events_write = os.pipe()
        os.set_blocking(self.events, False)
        self._pending = b""
        self._child: _Child | None = None
        self._forked = False
        self.importing = "torch"
        self.facts: dict[str, Any] | None = None
        self.stopped = False
        self.closed = False

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its group; 0 if it has not started."""
        return self._child.pid if self._child else 0

    def ends(self) -> dict[str, Any]:
        """Return the fields of `starter.Role` for it."""
        commands, events = self._commands_read.fileno(), self._events_write
        return {"name": self.role, "commands": commands, "events": events, "folder": str(self.folder)}

    def await_fork(self, starter: _Child | None, log: Path) -> None:
        """Leave its ends of socket and pipe to this starter with this log, which will fork it."""
        self._child, self._log = starter, log
        self._commands_read.close()
        os.close(self._events_write)

    def adopt(self, pid: int) -> None:
        """The starter has forked this server. Raises LookupError if it cannot have done that."""
        if self._forked or not self._child:
            raise LookupError("this server has been forked")
        self._child.ended(IMPORT_SECONDS)  # the starter ends now, and this process becomes the parent of the server
        self._child, self._forked, self._log = _Child(pid), True, self.folder / "log"

    def ended(self) -> int | None:
        """Return its wait status, or None while it runs."""
        status = self._child.ended() if self._child else None
        return None if status == 0 and not self._forked else status  # a starter that has ended well has forked it

    def log(self) -> str:
        """Return the last 64 KiB of its output."""
        return tail(self._log, 1 << 16)

    def enforce(self, now: float) -> bool:
        """Kill it if a signal has stopped it, or if its imports take too long; return whether it had not served yet.

        The pipe of a server that is killed later shows its end.
        """
        stopped = bool(self.pid) and is_stopped(self.pid)
        late = self.facts is None and now - self.started > IMPORT_SECONDS
        if not (stopped or late):
            return False
        self.stopped |= stopped
        kill_tree(self.pid)  # none of these runs after its parent has ended
        self.kill()
        if self.facts is not None:
            return False
        self.importing += " (stopped by a signal)" if stopped else f" (killed after {IMPORT_SECONDS:.0f} s)"
        return True

    def kill(self) -> None:
        """Send SIGKILL to its group, and wait for its end."""
        if self._child and self._child.ended() is None:
            rlimits.kill_group(self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # a new fork has no group yet
            self._child.ended(IMPORT_SECONDS)

    def go(self) -> None:
        """Allow it to import the extension."""
        with contextlib.suppress(OSError):
            self._commands.sendall(GO)

    def send(self, key: bytes = b"", **command: Any) -> None:  # noqa: ANN401
        """Send a command and the key of a job's journal; if the server has ended, the event pipe shows it."""
        descriptors = []
        if key:
            read, write = os.pipe()  # from which one process can read the key once
            os.write(write, key)
            os.close(write)
            descriptors.append(read)
        with contextlib.suppress(OSError):
            socket.send_fds(self._commands, [json.dumps(command).encode() + b"\n"], descriptors)
        for one in descriptors:
            os.close(one)

    def read(self) -> list[dict[str, Any]] | None:
        """Return the events that have arrived; None at the end of the pipe. Raises ValueError if one is no event."""
        try:
            data = os.read(self.events, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _MOST_PENDING:
            raise ValueError("an event is too long")
        events = [json.loads(line) for line in lines]
        if not all(isinstance(one, dict) for one in events):
            raise ValueError("an event is not an object")
        return events

    def close(self, patience: float = 2.0) -> int:
        """End it and its children; return its wait status. A server that serves has `patience` seconds to end."""
        if not self.closed:
            self.closed = True
            self._commands.close()
            if self._child and self.facts is not None:
                self._child.ended(patience)
            self.kill()
            os.close(self.events)
        return self.ended() or 0


class Servers:
    """The current process of each fork server that was started, by role."""

    def __init__(
        self, command: Callable[[Sequence[Mapping[str, Any]]], list[str]], new_dir: Callable[[], Path]
    ) -> None:
        """`command(roles)` returns the arguments of a starter, `new_dir()` an empty directory."""
        self.no_heap_checks = ""  # the reason if the heap checks are not available
        self._servers: dict[str, Server] = {}
        self._command, self._new_dir = command, new_dir
        self._released = False
        self.starts: Counter[str] = Counter()  # how often each server was started

    def start(self, *roles: str) -> None:
        """Let one starter, which imports torch once, fork these servers; HEAP_CHECKS may set `no_heap_checks`."""
        environment = (heap_check_environment if HEAP_CHECKS in roles else plain_environment)(os.environ)
        if isinstance(environment, str):
            self.no_heap_checks = environment
            return
        started = [Server(role, self._new_dir()) for role in roles]
        ends = [server.ends() for server in started]
        folder, child = started[-1].folder, None
        try:
            with (folder / "log").open("ab") as log:
                starter = subprocess.Popen(
                    self._command(ends),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**environment, "TMPDIR": str(folder)},  # deleted with the directory
                    cwd=folder,
                    pass_fds=[one[end] for one in ends for end in ("commands", "events")],
                    start_new_session=True,
                )
            starter.returncode, child = 0, _Child(starter.pid)  # which asks for the status
        finally:
            for server in started:
                server.await_fork(child, folder / "log")
        for server in started:
            self._servers[server.role] = server
            self.starts[server.role] += 1
            if self._released:
                server.go()

    def release(self) -> None:
        """Allow the servers, and those that are started later, to import the extension."""
        self._released = True
        for role, server in self._servers.items():
            if role != JUDGE:
                server.go()

    def ready(self) -> list[Server]:
        """Return the servers that accept jobs, the one under the heap checks before the plain one: it is slow."""
        found = [self._servers[one] for one in (ORDERS, JUDGE, HEAP_CHECKS, PLAIN) if one in self._servers]
        return [server for server in found if server.facts is not None and not server.closed]

    def open(self) -> list[Server]:
        """Return the servers that run."""
        return [one for one in self._servers.values() if not one.closed]

    def importing(self) -> list[Server]:
        """Return the servers that are still importing."""
        return [one for one in self.open() if one.facts is None]

    def poll(self, seconds: float) -> Iterator[tuple[Server, list[dict[str, Any]] | None]]:
        """Wait at most this long; yield the new events of each server, None instead of events if it has ended.

        A process of the extension may keep the pipe of a server open that has ended. Raises ValueError if something
        that is no event arrives.
        """
        ended = [one for one in self.open() if one.ended() is not None]
        waiting = select.poll()
        for one in self.open():
            waiting.register(one.events, select.POLLIN)
        found = {descriptor for descriptor, _ in waiting.poll(0 if ended else seconds * 1000)}
        readable = [one for one in self.open() if one.events in found]
        for server in dict.fromkeys([*readable, *ended]):
            if not server.closed:  # the caller may have closed it because of an event of another server
                yield server, server.read() if server in readable else None

    def close(self, *roles: str, patience: float = 2.0) -> None:
        """End these servers, by default all, and their children."""
        for role, server in self._servers.items():
            if not roles or role in roles:
                server.close(patience)
