"""The judge's start: reads cases.py before any code of the extension runs, then serves as a fork server."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from builder.gate.context import Context
from builder.gate.imports.cases_file import load_cases
from builder.gate.judge.verdict import refuse_missing_ops
from builder.gate.outcome import Spec
from builder.gate.processes.fork_server import ForkServer, send_event
from builder.gate.system import rlimits


def main(root: str, spec: Spec, commands: int, events: int) -> None:
    """Read cases.py, send "ready", serve. The starter has imported torch and hidden its memory. Does not return."""
    refuse_missing_ops()
    file = load_cases(Path(root))
    gc.freeze()  # a garbage collection in a child would copy every page of torch
    gc.enable()
    rlimits.survive_parent()
    cases = [[case.op, case.name, case.edge, list(case.devices), dict(case.not_claimed)] for case in file.cases]
    send_event(events, event="ready", cases=cases, problem=file.problem)
    ForkServer(Context(spec, file.cases), commands, events).run()
    os._exit(0)
