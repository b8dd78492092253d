"""Replaces the run of the op gate by a fixed answer, because the torch of these tests is a stub that runs no ops.

tests/full runs the real gate.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.outcome import NOT_RUN, PASSED, Answer, Outcome, signature
from builder.proof import Check, Verdict
from builder.proofs.cells.op_gate import GATE_CHECKS

NO_GPU = "no GPU on this machine"
WHERE: dict[str, Any] = {"torch": "2.11.0", "cuda": "13.0", "python": "3.12.1", "gpus": []}

#: The verdict of each check of the gate: passed, and "not run" for checks that need a GPU.
VERDICTS: dict[Check, Verdict] = {check: Verdict.NOT_RUN if check.on_gpu else Verdict.PASSED for check in GATE_CHECKS}


def answer(*failed: Outcome) -> Answer:
    """Return an answer for one op on a machine without a GPU; every check passes except `failed`."""
    outcomes = [
        Outcome(check, "tiny::op", "plain", NOT_RUN if check.startswith("gpu-") else PASSED, NO_GPU * ("gpu-" in check))
        for check in CHECKS
        if check not in {one.check for one in failed}
    ]
    return Answer(WHERE, ["tiny::op"], [*outcomes, *failed])


def signed(monkeypatch: pytest.MonkeyPatch, given: Answer) -> bytes:
    """Return an answer as the gate in a container writes it; gates in containers get the key of this answer."""
    monkeypatch.setattr("builder.proofs.cells.container.write_key", lambda _: b"key")
    data = json.loads(json.dumps(asdict(given)))
    return json.dumps({**data, "signature": signature(b"key", data)}).encode()


def can_gate(monkeypatch: pytest.MonkeyPatch, *failed: Outcome) -> list[Path]:
    """Make every run of the gate return this answer; return a list that collects the interpreters it is called with."""
    interpreters: list[Path] = []

    def run_gate(interpreter: Path, *_: object, **__: object) -> Answer:
        interpreters.append(interpreter)
        return answer(*failed)

    monkeypatch.setattr("builder.proofs.cells.cell_run.run_gate", run_gate)
    return interpreters
