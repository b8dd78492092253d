"""The op gate's answer without its run: the small farm's torch is a few lines, and nothing can be executed with it.

The gate itself runs for real in tests/integration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.gate.outcome import CHECKS, NOT_RUN, PASSED, Answer, Outcome
from builder.proof import Check, Verdict
from builder.proofs.gating import GATE

NO_GPU = "no GPU on this machine"
WHERE: dict[str, Any] = {"torch": "2.11.0", "cuda": "13.0", "python": "3.12.1", "gpus": []}

#: What it says of each check of the gate: all well, and no GPU.
VERDICTS: dict[Check, Verdict] = {check: Verdict.NOT_RUN if check.on_gpu else Verdict.PASSED for check in GATE}


def answer(*failed: Outcome) -> Answer:
    """One op that passes everything but what failed, on a machine without a GPU."""
    outcomes = [
        Outcome(check, "tiny::op", "plain", NOT_RUN if check.startswith("gpu-") else PASSED, NO_GPU * ("gpu-" in check))
        for check in CHECKS
        if check not in {one.check for one in failed}
    ]
    return Answer(WHERE, ["tiny::op"], [*outcomes, *failed])


def can_gate(monkeypatch: pytest.MonkeyPatch, *failed: Outcome) -> list[Path]:
    """Let the gate say this from now on; returns the interpreters it was asked for, as they come."""
    asked: list[Path] = []

    def run_gate(interpreter: Path, *_: object, **__: object) -> Answer:
        asked.append(interpreter)
        return answer(*failed)

    monkeypatch.setattr("builder.proofs.local.run_gate", run_gate)
    return asked
