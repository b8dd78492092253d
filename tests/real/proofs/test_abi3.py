"""The check `abi3` and abi3audit give the same verdict on a compiled library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder.proofs.static.stable_abi import check_abi3
from builder.wheelfile.facts import read_facts
from tests.fixtures.compiled import compiled
from tests.unit.proofs.make import claim, make_wheel


@pytest.mark.parametrize("call", ["PyModule_Create2", "PyBuffer_Release", "_PyThreadState_UncheckedGet"])
def test_verdict_equals_that_of_abi3audit(tmp_path: Path, call: str) -> None:
    source = f'extern "C" {{ int {call}(); int PyInit__C() {{ return {call}(); }} }}'
    extension = compiled(tmp_path, source, name="_C.abi3.so")
    wheel = make_wheel(tmp_path, {"ops/_C.abi3.so": extension}, tag="cp310-abi3-linux_x86_64")
    report = tmp_path / "report.json"
    subprocess.run(
        [sys.executable, "-m", "abi3audit", "--report", "--output", str(report), str(wheel)],
        capture_output=True,
        check=False,
    )
    (specs,) = json.loads(report.read_text())["specs"].values()
    theirs = specs["wheel"][0]["result"]
    proof = check_abi3(read_facts(wheel), claim())
    assert proof is not None
    assert (proof.verdict == "passed") is (theirs["is_abi3"] and theirs["is_abi3_baseline_compatible"])
