"""How a fork server starts: it imports torch without code of the wheel, and waits until it may import the extension.

Python starts with -S, and imports no file of the wheel, until the scheduler allows it: the judge has then read its own
files. What the wheel adds to the start of Python is executed later, just before the extension is imported.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from builder.gate.imports.packages import WithoutExtension, add_packages, execute_startup_code, files_of
from builder.gate.outcome import Spec
from builder.gate.processes.spawn import GO, start_command
from builder.gate.system import rlimits
from builder.gate.tasks import HEAP_CHECKS, JUDGE


def main(root: str, role: str, commands: int, events: int, free: int) -> None:
    """Import torch, and become the fork server of this role. Started by `spawn.start_command`; does not return.

    Args:
        root: the folder of the packed gate, which is on the path.
        role: JUDGE, PLAIN or HEAP_CHECKS.
        commands: the descriptor of the socket from which commands arrive.
        events: the descriptor of the pipe for events.
        free: 1 if torch may import files of the wheel, because the scheduler has allowed it.

    """
    spec = Spec.read(Path(root))
    if role == JUDGE:
        rlimits.hide_memory()
    add_packages()
    without_wheel = WithoutExtension(spec.imports, files_of(spec.name))

    def wait() -> None:
        """Return when the extension may be imported; start again if torch wants files of the wheel."""
        if free:
            return
        if os.read(commands, len(GO)) != GO:  # the scheduler has ended
            os._exit(1)
        if without_wheel.used:
            command = start_command(Path(root), role, commands, events, scheduler=os.getppid(), free=1)
            os.execv(command[0], command)  # noqa: S606 (this Python)
        without_wheel.remove()
        what = "the .pth and .start files of installed packages"
        os.write(events, json.dumps({"event": "importing", "what": what}).encode() + b"\n")
        execute_startup_code()

    if free:
        execute_startup_code()
    else:
        without_wheel.install()
    try:
        import torch  # noqa: F401, PLC0415
    except Exception:
        if role == JUDGE or not without_wheel.used:
            raise
        wait()  # does not return
    # They import torch.
    from builder.gate.processes import fork_server, judge_process  # noqa: PLC0415

    if role == JUDGE:
        judge_process.main(root, spec, commands, events)
    fork_server.main(root, spec, commands, events, wait, heap_checks=role == HEAP_CHECKS)
