"""Replaces the function that runs a check: it reports "passed" with the key of the task."""

from __future__ import annotations

from cheats.ops import register_wrong_ops

from builder.gate.outcome import PASSED, Outcome
from builder.gate.processes import worker


def _passed(loaded: worker.LoadedExtension, request: worker.TaskRequest, _: object) -> list[Outcome]:
    case = None if request.case is None else loaded.cases[request.case]
    return [Outcome(request.check, case.op if case else "", case.name if case else "", PASSED, "all is well")]


worker._call_check = _passed
register_wrong_ops()
