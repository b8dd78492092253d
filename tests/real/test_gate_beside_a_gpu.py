"""The op gate on a machine with a GPU: torch initialises CUDA wherever it can, but the fork server must not.

A fake driver reports the GPU, so the test needs none. tests/full/test_gpu_defects.py needs a GPU.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from builder.gate.outcome import Spec
from tests.conftest import run
from tests.fixtures.gate_env import (
    GateRun,
    build_wheel,
    cases,
    fake_driver,
    make_environment,
    pack_gate,
    run_gate,
)

pytestmark = [pytest.mark.network, pytest.mark.slow]

SPEC = Spec("sample_correct", ["sample_correct"], libraries={"libkernels": ["CPU", "CUDA"]}, jobs=2)
#: A check for each way to call an op: directly, traced, on fake CUDA tensors, compiled, and on CUDA.
CHECKS = ["values", "opcheck", "fake", "export", "compile", "gpu-values"]
#: Each check forks for it. To compile every other op too takes longer, and shows no more.
ONE_OP = '\nCASES = [each for each in CASES if each.op == "sample_correct::multiply"]\n'
#: It prints whether torch finds a GPU through NVML, and without it.
_FIND = "import torch; print(torch.cuda.is_available(), torch._C._cuda_getDeviceCount())"


def test_the_fork_server_initialises_no_cuda(store: Path, tmp_path: Path) -> None:
    """Before a fork, one call that initialises CUDA is enough to make CUDA unusable in each check."""
    wheel = build_wheel(tmp_path, "sample_correct")
    python = make_environment(store, tmp_path / "environment", "2.11.0", "3.12", [wheel])
    driver = fake_driver(tmp_path)
    found = run(python, "-c", _FIND, env={**driver.env, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    assert (found.out, len(driver.calls())) == ("True 0\n", 1), f"torch does not use the fake driver: {found.all}"
    driver.log.unlink()
    spec = replace(SPEC, checks=CHECKS)
    (one_op := tmp_path / "cases.py").write_text(cases("correct").read_text() + ONE_OP)
    beside = run_gate(pack_gate(python, tmp_path / "beside", spec, one_op, gpus=True), driver.env)
    # torch stores the count, so no fork of a process that has counted calls the driver.
    forks = Counter(parent for _, parent in driver.calls())
    assert max(forks.values(), default=0) >= 3, f"the fork server has counted the GPUs with CUDA: {driver.calls()}"
    assert not {*forks} & {pid for pid, _ in driver.calls()}
    alone = run_gate(pack_gate(python, tmp_path / "alone", spec, one_op))
    assert not beside.failures, beside.failure_text()
    assert _verdicts(beside) == _verdicts(alone)


def _verdicts(run: GateRun) -> dict[tuple[str, ...], str]:
    return {(one.check, one.op, one.case): one.verdict for one in run.answer.outcomes}
