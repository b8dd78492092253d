"""Runs the check "import-order" in a process of its own: it starts processes, which a fork server's child must not."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from builder.gate.checks.import_order import import_orders
from builder.gate.imports.launcher import Launcher
from builder.gate.imports.packages import add_packages
from builder.gate.outcome import Spec
from builder.gate.processes.journal import JOURNAL, KEY_BYTES, Journal
from builder.gate.system import rlimits


def main(root: str, task_dir: str, key: str, launcher: str = "") -> None:
    """Write the outcomes of the check to the journal.

    `key` is the number of a descriptor with the key of the journal, `launcher` that of the launcher's socket.
    """
    rlimits.exit_with_parent(os.getppid())
    add_packages()  # not by Python itself, which would execute code of the wheel that could read the key
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs every `finally`, which ends the started processes
    spec = Spec.read(Path(root))
    journal = Journal(str(Path(task_dir, JOURNAL)), os.read(int(key), KEY_BYTES))
    os.close(int(key))
    try:
        connection = Launcher(socket.socket(fileno=int(launcher))) if launcher else None
        for outcome in import_orders(spec, Path(root), connection):
            journal.outcome(outcome)
    except Exception:  # noqa: BLE001 (the scheduler reports the traceback from the log)
        traceback.print_exc()
        sys.exit(1)
    journal.end()
