"""The plain fork server and the one under glibc's heap checks: starting, restarting, reading events, closing."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.gate.processes.spawn import (
    HEAP_CHECKS,
    JUDGE,
    PLAIN,
    ForkServerProcess,
    heap_check_environment,
    plain_environment,
)

Command = Callable[[Sequence[Mapping[str, Any]]], list[str]]

#: How often a fork server that one of its tasks killed is restarted.
RESTARTS = 6


class ServerPool:
    """Up to two fork servers; the parameter `heap_checks` says which one is meant.

    Attributes:
        servers: the current process of each server that was started.
        no_heap_checks: the reason if the heap checks are not available, or "".

    """

    def __init__(self, command: Command, new_dir: Callable[[], Path]) -> None:
        """`command(roles)` returns the arguments of a starter, `new_dir()` an empty directory."""
        self.servers: dict[bool, ForkServerProcess] = {}
        self.no_heap_checks = ""
        self._command, self._new_dir = command, new_dir
        self._released = False
        self._starts = {False: 0, True: 0}
        self._selector = selectors.DefaultSelector()

    def start(
        self, *, heap_checks: bool, judge: ServerPool | None = None, launcher: socket.socket | None = None
    ) -> None:
        """Start a server, or set `no_heap_checks`.

        Its starter also forks the judge, the only server of the pool `judge`, and a launcher for the socket `launcher`.
        """
        environment = heap_check_environment(os.environ) if heap_checks else plain_environment(os.environ)
        if isinstance(environment, str):
            self.no_heap_checks = environment
            return
        beside = judge.add(JUDGE) if judge else None
        server = self.add(HEAP_CHECKS if heap_checks else PLAIN)
        server.start_together(self._command, environment, beside, launcher)
        if self._released:
            server.go()

    def add(self, role: str) -> ForkServerProcess:
        """Return a new server that has not started yet."""
        server, key = ForkServerProcess(role, self._new_dir()), role == HEAP_CHECKS
        self._starts[key] += 1
        self.servers[key] = server
        self._selector.register(server.events, selectors.EVENT_READ, key)
        return server

    def wake_for(self, other: ServerPool) -> None:
        """Let `poll` return when a server of another pool has an event."""
        self._selector.register(other._selector, selectors.EVENT_READ, None)

    def release(self) -> None:
        """Allow the servers, and those that are started later, to import the extension."""
        self._released = True
        for server in self.servers.values():
            server.go()

    def restart(self, *, heap_checks: bool) -> bool:
        """Start a server again unless it was restarted RESTARTS times; return whether it was started."""
        if self._starts[heap_checks] > RESTARTS:
            return False
        self.start(heap_checks=heap_checks)
        return True

    def is_first(self, *, heap_checks: bool) -> bool:
        """Whether the current process of this server is its first."""
        return self._starts[heap_checks] == 1

    def ready(self) -> list[tuple[bool, ForkServerProcess]]:
        """Return the servers that accept tasks, the one under the heap checks first: its tasks are slow."""
        return [(one, self.servers[one]) for one in (True, False) if one in self.servers and self.servers[one].ready]

    def importing(self) -> list[tuple[bool, ForkServerProcess]]:
        """Return the servers that are still importing."""
        return [(key, one) for key, one in self.servers.items() if not one.closed and one.facts is None]

    def poll(self, seconds: float) -> Iterator[tuple[bool, ForkServerProcess, list[dict[str, Any]] | None]]:
        """Wait at most this long; yield the new events of each server, None instead of events if it has ended.

        A process of the extension may keep the pipe of a server open that has ended. Raises ValueError if something
        that is no event arrives.
        """
        ended = [key for key, one in self.servers.items() if not one.closed and one.ended() is not None]
        selected = self._selector.select(0 if ended else seconds)
        readable = [key.data for key, _ in selected if key.data is not None]
        for heap_checks in dict.fromkeys([*readable, *ended]):
            server = self.servers[heap_checks]
            if not server.closed:  # the caller may have closed it because of an event of the other server
                yield heap_checks, server, server.read() if heap_checks in readable else None

    def wait(self, server: ForkServerProcess) -> int:
        """Wait for a server that has ended; return its wait status."""
        self._selector.unregister(server.events)
        server.wait()
        server.close()
        return server.ended() or 0

    def stop(self, *, heap_checks: bool) -> None:
        """Kill a server if it runs."""
        server = self.servers.get(heap_checks)
        if server and not server.closed:
            self._selector.unregister(server.events)
            server.close(0)

    def close(self) -> None:
        """End the servers and their children."""
        for server in self.servers.values():
            server.close()
        self._selector.close()
