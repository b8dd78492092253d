"""The starter: imports torch once, without code of installed packages, and forks the processes that need torch.

The scheduler names the processes as roles: the launcher of import orders, the judge, and the plain fork server. The
starter forks one process for each, and ends; the scheduler then becomes their parent. With a single role, such as the
fork server under the heap checks, the starter itself becomes that process.

Python starts with -S, and what a wheel adds to the start of Python is executed later, by the processes that import the
extension. So no code of the wheel runs before the judge has read its own files.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from builder.gate.imports import launcher
from builder.gate.imports.packages import WithoutExtension, add_packages, files_of
from builder.gate.outcome import Spec
from builder.gate.processes.spawn import HEAP_CHECKS, JUDGE, LAUNCHER, start_command
from builder.gate.system import rlimits


@dataclass(frozen=True)
class Role:
    """A process that the starter forks."""

    #: "launcher", "judge", "plain" or "heap-checks".
    name: str
    #: The descriptor of the socket from which its commands arrive.
    commands: int
    #: The descriptor of the pipe for its events; the launcher has none.
    events: int = -1
    #: The directory for its files; the launcher has none.
    folder: str = ""


def main(root: str, scheduler: int, roles: str) -> None:
    """Import torch, and become these roles, given as JSON. Started by `spawn.start_command`; `root` is on the path.

    `scheduler` is the pid of the scheduler. Does not return.
    """
    wanted = [Role(**one) for one in json.loads(roles)]
    spec = Spec(**json.loads(Path(root, "spec.json").read_text(encoding="utf-8")))
    add_packages()
    finder = None
    if any(role.name == JUDGE for role in wanted):
        finder = WithoutExtension(spec.imports, files_of(spec.name))
        finder.install()
    try:
        import torch  # noqa: F401, PLC0415
    except Exception:
        if finder is None or not finder.used or len(wanted) == 1:
            raise
    if len(wanted) == 1:
        _become(wanted[0], root, spec)
    # Without a module of the wheel that it wants to import, torch is right for the judge only.
    separate = finder is not None and finder.used
    starter = os.getpid()
    for role in wanted:
        if finder and not separate and role.name != LAUNCHER:
            _import_for_gradients()
        if os.fork():
            continue
        _leave(starter, role, wanted)
        rlimits.exit_with_parent(scheduler)
        if separate:
            command = start_command(Path(root), [vars(role)], scheduler)
            os.execv(command[0], command)  # noqa: S606 (this Python)
        if finder and role.name != JUDGE:
            finder.remove()
        _become(role, root, spec)
    os._exit(0)


def _import_for_gradients() -> None:
    """Import what both the judge and the plain fork server need, after the launcher was forked."""
    from builder.gate.processes.fork_server import PRELOAD_FOR_GRADIENTS, import_all  # noqa: PLC0415

    import_all(PRELOAD_FOR_GRADIENTS)


def _leave(starter: int, role: Role, roles: list[Role]) -> None:
    """Separate this process from the others that the starter forks, and wait until the starter has ended."""
    os.setsid()
    for other in roles:
        if other != role:
            os.close(other.commands)
            if other.events >= 0:
                os.close(other.events)
    if role.folder:
        log = os.open(f"{role.folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(role.folder)
        os.environ["TMPDIR"] = role.folder
    while os.getppid() == starter:
        time.sleep(0.002)
    if role.events >= 0:
        os.write(role.events, json.dumps({"event": "forked", "pid": os.getpid()}).encode() + b"\n")


def _become(role: Role, root: str, spec: Spec) -> None:
    """Do the work of this role, with torch imported. Does not return."""
    if role.name == LAUNCHER:
        launcher.serve(role.commands)
    elif role.name == JUDGE:
        from builder.gate.judge.start import main as judge  # noqa: PLC0415

        judge(root, spec, role.commands, role.events)
    else:
        from builder.gate.processes.fork_server import main as fork_server  # noqa: PLC0415

        fork_server(root, spec, role.commands, role.events, heap_checks=role.name == HEAP_CHECKS)
