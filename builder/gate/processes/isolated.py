"""Runs a function that starts processes itself in a process of its own, because a fork server's child must not."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from builder.gate.imports.launcher import Launcher
from builder.gate.outcome import Spec
from builder.gate.processes.journal import JOURNAL, KEY_BYTES, Journal
from builder.gate.system import rlimits


def main(root: str, function: str, task_dir: str, key: str, launcher: str = "") -> None:
    """Call `module:function` of `builder.gate.checks` with (spec, root, launcher); write its outcomes to the journal.

    `key` is the number of a descriptor with the key of the journal, `launcher` that of the launcher's socket.
    """
    rlimits.exit_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs every `finally`, which ends the started processes
    spec = Spec.read(Path(root))
    journal = Journal(str(Path(task_dir, JOURNAL)), os.read(int(key), KEY_BYTES))
    os.close(int(key))
    module, _, name = function.partition(":")
    try:
        connection = Launcher(socket.socket(fileno=int(launcher))) if launcher else None
        called = getattr(importlib.import_module(f"builder.gate.checks.{module}"), name)
        for outcome in called(spec, Path(root), connection):
            journal.outcome(outcome)
    except Exception:  # noqa: BLE001 (the scheduler reports the traceback from the log)
        traceback.print_exc()
        sys.exit(1)
    journal.end()
