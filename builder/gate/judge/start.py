"""Starts the judge: imports torch and cases.py before any code of the extension runs, then serves as a fork server."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

from builder.gate.judge.packages import WithoutExtension, add_packages, files_of
from builder.gate.outcome import Spec
from builder.gate.system import rlimits


def main(root: str, commands: int, events: int) -> None:
    """Import everything, send "ready", serve. Started by `spawn.judge_command` with -S; `root` is on the path."""
    rlimits.hide_memory()
    spec = Spec(**json.loads(Path(root, "spec.json").read_text(encoding="utf-8")))
    add_packages()
    WithoutExtension(spec.imports, files_of(spec.name)).install()
    # These import torch, which is on the path from here on.
    from builder.gate.imports.cases_file import load_cases  # noqa: PLC0415
    from builder.gate.judge.verdict import refuse_missing_ops  # noqa: PLC0415
    from builder.gate.processes.fork_server import PRELOAD, ForkServer, import_all, send_event  # noqa: PLC0415
    from builder.gate.processes.worker import LoadedExtension  # noqa: PLC0415

    import_all(PRELOAD[:2])
    refuse_missing_ops()
    file = load_cases(Path(root))
    gc.freeze()  # a garbage collection in a child would copy every page of torch
    gc.enable()
    rlimits.survive_parent()
    cases = [[case.op, case.name, case.edge, list(case.devices), dict(case.not_claimed)] for case in file.cases]
    send_event(events, event="ready", cases=cases, problem=file.problem)
    ForkServer(LoadedExtension(spec, file.cases, (), heap_checks=False), commands, events).run()
    os._exit(0)
