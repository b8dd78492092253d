"""auditwheel and abi3audit say the same about a compiled library as the checks `tags` and `abi3`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder.proofs.static.stable_abi import check_abi3
from builder.proofs.static.tags import best_platform
from builder.wheelfile.facts import read_facts
from tests.fixtures.compiled import compiled
from tests.unit.proofs.make import claim, make_wheel


@pytest.mark.parametrize(
    "source",
    [
        '#include <stdlib.h>\nchar* f() { return getenv("X"); }',
        "#include <iostream>\nvoid f() { std::cout << 1.5 << std::endl; }",
    ],
)
def test_platform_equals_that_of_auditwheel(tmp_path: Path, source: str) -> None:
    extension = compiled(tmp_path, source + '\nextern "C" void* PyInit__C() { return 0; }', name="_C.so")
    wheel = make_wheel(tmp_path, {"ops/_C.so": extension})
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)], capture_output=True, text=True, check=True
    )
    assert best_platform(read_facts(wheel), frozenset()) == json.loads(shown.stdout)["overall_tag"]


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
