"""A process of its own for what a nursery cannot do: run a function of this package that starts processes itself."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from builder.gate import limits
from builder.gate.journal import Journal
from builder.gate.outcome import Spec


def main(root: str, function: str, room: str) -> None:
    """Call `module:function` with (spec, root); its outcomes go to the journal in the room."""
    limits.die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through every `finally`, which ends what was started
    spec = Spec(**json.loads(Path(root, "spec.json").read_text(encoding="utf-8")))
    journal = Journal(str(Path(room, "journal")))
    module, _, name = function.partition(":")
    try:
        for outcome in getattr(importlib.import_module(f"builder.gate.{module}"), name)(spec, Path(root)):
            journal.outcome(outcome)
    except Exception:  # noqa: BLE001 (told by the conductor, with this text)
        traceback.print_exc()
        sys.exit(1)
    journal.end()
