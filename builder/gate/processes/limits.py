"""Enforces the limits of running tasks and of imports."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence

from builder.gate.outcome import Spec
from builder.gate.processes.running_task import RunningTask
from builder.gate.processes.spawn import ForkServerProcess

#: Seconds that importing torch and the extension may take, from a cold disk.
IMPORT_SECONDS = 180.0
_GRACE = 0.3  # seconds between the signal to write the stack and SIGKILL
_PATIENCE = 3.0  # seconds after SIGKILL in which a server must report the end of the task


def enforce(
    spec: Spec, running: Mapping[int, RunningTask], importing: Sequence[tuple[bool | None, ForkServerProcess]]
) -> Iterator[tuple[ForkServerProcess, bool | None]]:
    """Kill what exceeds its limit; yield each server, and its key in the pool, that was killed during its imports.

    A server that does not obey, because an op has stopped it, is killed too; its pipe then shows its end.
    """
    now = time.monotonic()
    for heap_checks, server in importing:
        if not server.closed and now - server.started > IMPORT_SECONDS:
            server.kill()
            server.importing += f" (killed after {IMPORT_SECONDS:.0f} s)"
            yield server, heap_checks
    for number, one in running.items():
        if not one.killed:
            one.limit = one.exceeded(spec, now)
            if one.limit:
                one.server.send_command(kill=number, signal=signal.SIGUSR1)  # faulthandler writes the stack
                one.killed = now
        elif now - one.killed > _GRACE + _PATIENCE:
            one.server.kill()
        elif now - one.killed > _GRACE:
            one.server.send_command(kill=number, signal=signal.SIGKILL)
