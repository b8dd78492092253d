"""The logic of the GPU checks, with torch on the CPU and stand-ins for torch.cuda: correct ops pass.

tests/full/test_gpu_defects.py needs a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED
from tests.conftest import ROOT, run
from tests.fixtures import gate_env

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_correct_ops_pass_however_they_write_and_return(store: Path, tmp_path: Path) -> None:
    """In-place ops with gradients, a gradient that is the output gradient, results in a list, expanded inputs."""
    environment = gate_env.torch_environment(store, "2.11.0", "3.12", tmp_path / "log")
    program = Path(gate_env.__file__).with_name("gpu_checks_on_cpu.py")
    ran = run(environment.interpreter, program, ROOT)
    assert ran.code == 0, ran.all
    found = json.loads(ran.out)
    one_gpu = {name: told for name, told in found.items() if "with one GPU" in name}
    assert {verdict for verdict, _ in one_gpu.values()} == {NOT_RUN}, one_gpu
    assert found.pop("graph: synchronises") == [
        FAILED,
        "cannot be captured: RuntimeError: operation not permitted when stream is capturing. Do not synchronise. "
        "Do not read device data on the host. Allocate memory only through torch",
    ]
    others = {name: told for name, told in found.items() if name not in one_gpu}
    assert {name: told for name, told in others.items() if told[0] != PASSED} == {}
    assert len(others) == 23
