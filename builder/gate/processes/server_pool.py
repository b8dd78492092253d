"""The fork servers of a run: starting, restarting, reading events, closing."""

from __future__ import annotations

import os
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.gate.processes.spawn import ForkServerProcess, heap_check_environment, plain_environment
from builder.gate.tasks import HEAP_CHECKS, JUDGE, PLAIN

Command = Callable[[Sequence[Mapping[str, Any]]], list[str]]

#: How often a fork server that one of its tasks killed is restarted.
RESTARTS = 6


class ServerPool:
    """Up to three fork servers by their roles: PLAIN, HEAP_CHECKS, and JUDGE, which never imports the extension.

    Attributes:
        servers: the current process of each server that was started.
        no_heap_checks: the reason if the heap checks are not available, or "".

    """

    def __init__(self, command: Command, new_dir: Callable[[], Path]) -> None:
        """`command(roles)` returns the arguments of a starter, `new_dir()` an empty directory."""
        self.servers: dict[str, ForkServerProcess] = {}
        self.no_heap_checks = ""
        self._command, self._new_dir = command, new_dir
        self._released = False
        self._starts: Counter[str] = Counter()

    def start(self, role: str, *, judge: bool = False, launcher: socket.socket | None = None) -> None:
        """Start the server PLAIN or HEAP_CHECKS, or set `no_heap_checks`.

        Its starter also forks the judge, and a launcher for the socket `launcher`.
        """
        environment = (heap_check_environment if role == HEAP_CHECKS else plain_environment)(os.environ)
        if isinstance(environment, str):
            self.no_heap_checks = environment
            return
        started = [ForkServerProcess(one, self._new_dir()) for one in ((JUDGE, role) if judge else (role,))]
        for server in started:
            self.servers[server.role] = server
            self._starts[server.role] += 1
        started[-1].start_together(self._command, environment, started, launcher)
        if self._released:
            started[-1].go()

    def release(self) -> None:
        """Allow the servers, and those that are started later, to import the extension."""
        self._released = True
        for role, server in self.servers.items():
            if role != JUDGE:
                server.go()

    def restart(self, role: str) -> bool:
        """Start a server again unless it was restarted RESTARTS times; return whether it was started."""
        if self._starts[role] > RESTARTS:
            return False
        self.start(role)
        return True

    def is_first(self, role: str) -> bool:
        """Whether the current process of this server is its first."""
        return self._starts[role] == 1

    def ready(self) -> list[ForkServerProcess]:
        """Return the servers that accept tasks, the one under the heap checks before the plain one: it is slow."""
        found = [self.servers[one] for one in (JUDGE, HEAP_CHECKS, PLAIN) if one in self.servers]
        return [server for server in found if server.facts is not None and not server.closed]

    def open(self) -> list[ForkServerProcess]:
        """Return the servers that run."""
        return [one for one in self.servers.values() if not one.closed]

    def importing(self) -> list[ForkServerProcess]:
        """Return the servers that are still importing."""
        return [one for one in self.open() if one.facts is None]

    def poll(self, seconds: float) -> Iterator[tuple[ForkServerProcess, list[dict[str, Any]] | None]]:
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

    def wait(self, server: ForkServerProcess) -> int:
        """Wait for a server that has ended; return its wait status."""
        server.wait()
        server.close()
        return server.ended() or 0

    def stop(self, role: str) -> None:
        """Kill a server if it runs."""
        server = self.servers.get(role)
        if server:
            server.close(0)

    def close(self) -> None:
        """End the servers and their children."""
        for server in self.servers.values():
            server.close()
