"""The starter: imports torch once, without code of the wheel, and forks the fork servers, which need torch.

The scheduler names them as roles: that of import orders, the judge, and those of the other checks. The starter forks
one process for each, and ends; the scheduler, a subreaper, then becomes their parent.

Python starts with -S, and imports no file of the wheel, until the scheduler allows it: the judge has then read its own
files. What the wheel adds to the start of Python is executed later, just before the extension is imported.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.gate.imports.packages import (
    WithoutExtension,
    add_packages,
    execute_startup_code,
    files_of,
    is_startup_file,
)
from builder.gate.outcome import Spec
from builder.gate.processes import order_process
from builder.gate.processes.fork_server import write_to
from builder.gate.processes.journal import LOG
from builder.gate.processes.servers import GO, HEAP_CHECKS, JUDGE, ORDERS, start_command
from builder.gate.system import rlimits


@dataclass(frozen=True)
class Role:
    """A process that the starter forks."""

    #: "orders", "judge", "plain" or "heap-checks".
    name: str
    #: The descriptors of the socket from which its commands arrive, and of the pipe for its events.
    commands: int
    events: int
    folder: str
    #: Whether torch may import files of the wheel, because the scheduler has allowed it.
    free: bool = False


def main(root: str, scheduler: int, text: str) -> None:
    """Import torch, and become the roles of this JSON. Started by `servers.start_command`; `root` is on the path.

    `scheduler` is the pid of the scheduler. Does not return.
    """
    roles = [Role(**one) for one in json.loads(text)]
    spec = Spec.read(Path(root))
    if any(role.name == JUDGE for role in roles):
        rlimits.hide_memory()
    add_packages()
    starter = _Starter(root, spec, scheduler, roles)
    if roles[0].free:
        starter.become(roles[0])
    starter.fork()


class _Starter:
    """The process with torch, and what the forks inherit."""

    def __init__(self, root: str, spec: Spec, scheduler: int, roles: Sequence[Role]) -> None:
        """Import torch without files of the wheel, unless a role is free."""
        self._root, self._spec, self._scheduler, self._roles = root, spec, scheduler, roles
        self._files = files_of(spec.name)
        self._without_wheel = WithoutExtension(spec.imports, self._files)
        self._error: Exception | None = None
        self._pid = os.getpid()
        if roles[0].free:
            execute_startup_code()
        else:
            self._without_wheel.install()
        try:
            import torch  # noqa: F401, PLC0415
        except Exception as error:
            if not self._without_wheel.used:
                raise
            self._error = error

    def fork(self) -> None:
        """Fork a process for each role, tell the scheduler their pids, and end."""
        forked = {}
        for role in sorted(self._roles, key=lambda role: role.name != ORDERS):
            # Without cases no op is called.
            if role.name != ORDERS and self._spec.has_cases and not self._error:
                from builder.gate.processes.extension_process import PRELOAD, import_all  # noqa: PLC0415

                import_all(PRELOAD[:1])
            if pid := os.fork():
                forked[role] = pid
                continue
            self._leave(role)
            rlimits.exit_with_parent(self._scheduler)
            self.become(role)
        for role, pid in forked.items():
            os.write(role.events, json.dumps({"event": "forked", "pid": pid}).encode() + b"\n")
        os._exit(0)

    def _leave(self, role: Role) -> None:
        """Separate this process from the others that the starter forks, and wait until the starter has ended."""
        os.setsid()
        for other in self._roles:
            if other != role:
                os.close(other.commands)
                os.close(other.events)
        write_to(f"{role.folder}/{LOG}")
        os.chdir(role.folder)
        os.environ["TMPDIR"] = role.folder
        if role.name != JUDGE:
            rlimits.show_memory()
        while os.getppid() == self._pid:
            time.sleep(0.002)

    def become(self, role: Role) -> None:
        """Do the work of a role. Does not return."""
        ends = self._root, self._spec, role.commands, role.events
        if role.name == ORDERS:
            # Where a fork would differ from a new Python, each order is a new Python.
            forks = not (self._without_wheel.used or any(map(is_startup_file, self._files)))
            self._without_wheel.remove()
            order_process.main(*ends, forks=forks)
        if self._error:
            if role.name == JUDGE:
                raise self._error
            self._wait(role)  # does not return
        # They import torch.
        from builder.gate.processes import extension_process, judge_process  # noqa: PLC0415

        if role.name == JUDGE:
            judge_process.main(*ends)
        extension_process.main(*ends, partial(self._wait, role), heap_checks=role.name == HEAP_CHECKS)

    def _wait(self, role: Role) -> None:
        """Return when the extension may be imported; start again if torch wants files of the wheel."""
        if role.free:
            return
        if os.read(role.commands, len(GO)) != GO:  # the scheduler has ended
            os._exit(1)
        if self._without_wheel.used:
            command = start_command(Path(self._root), [{**vars(role), "free": True}], self._scheduler)
            os.execv(command[0], command)  # noqa: S606 (this Python)
        self._without_wheel.remove()
        what = "the .pth and .start files of installed packages"
        os.write(role.events, json.dumps({"event": "importing", "what": what}).encode() + b"\n")
        execute_startup_code()
