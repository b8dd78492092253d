"""The gate's processes, also beside a GPU, and its GPU checks on the CPU with stand-ins for torch.cuda."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Spec
from tests.conftest import PATIENCE, ROOT, is_running, run, wait_until
from tests.fixtures import gate_env
from tests.fixtures.gate_env import GateRun, build_wheel, cases, fake_driver, make_environment, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Verdict and reason of each check and op."""
    tmp_path = tmp_path_factory.mktemp("gpu")
    environment = gate_env.torch_environment(store, "2.11.0", "3.12", tmp_path / "log")
    program = Path(gate_env.__file__).with_name("gpu_checks_on_cpu.py")
    ran = run(environment.interpreter, program, ROOT).ok()
    return dict(json.loads(ran.out))


def test_a_second_gpu_is_one_that_cuda_finds(found: dict[str, Any]) -> None:
    verdicts = {told[0] for name, told in found.items() if "with one GPU" in name}
    assert verdicts == {NOT_RUN}


def test_correct_ops_pass_however_they_write_and_return(found: dict[str, Any]) -> None:
    """In-place ops with gradients, a gradient that is the output gradient, results in a list, expanded inputs."""
    ops = [name for name in found if name.startswith(("stream: ", "graph: ", "second_device: "))]
    assert len(ops) == 39
    wrong = {name: found[name] for name in ops if found[name][0] != PASSED and "wrong-state" not in name}
    assert wrong == {
        "graph: synchronises": [
            FAILED,
            "cannot be captured: RuntimeError: operation not permitted when stream is capturing. Do not synchronise. "
            "Do not read device data on the host. Allocate memory only through torch",
        ]
    }


def test_a_wrong_value_of_a_written_argument_is_found(found: dict[str, Any]) -> None:
    for check in ("stream", "graph", "second_device"):
        verdict, reason = found[f"{check}: wrong-state"]
        assert verdict == FAILED
        assert "argument 1 after the call is" in reason


def test_a_case_without_a_result_is_no_proof(found: dict[str, Any]) -> None:
    """It passed on a GPU, and was "not run" on the CPU."""
    verdict, reason = found["values of nothing"]
    assert (verdict, reason[:18]) == (NOT_RUN, "nothing to compare")


def test_a_gpu_on_which_torch_cannot_compute_is_not_one(found: dict[str, Any]) -> None:
    without = found["torch without kernels for the GPU"]
    assert without["gpus"] == []
    assert "cannot compute on the NVIDIA Tesla V100: RuntimeError: CUDA error: no kernel image" in without["no_gpu"]
    second = found["torch without kernels for the second GPU"]
    assert second.startswith("torch cannot compute on the second GPU: RuntimeError: CUDA error: no kernel image")
    assert [one["sm"] for one in found["a usable GPU"]["gpus"]] == ["sm_70"]
    assert found["a usable GPU"]["processes of a GPU"] == 16


def test_a_task_on_a_gpu_computes_float32_without_tf32(found: dict[str, Any]) -> None:
    assert found["TF32"] == [False, False]


def test_a_full_gpu_is_reported_with_its_free_memory(found: dict[str, Any]) -> None:
    assert "of which 1.02 GiB is free" in found["GPU out of memory"]


def test_a_draft_goes_on_in_a_new_process_after_an_error_of_cuda(found: dict[str, Any]) -> None:
    first, second = found["errors of CUDA in a draft"]
    assert "illegal memory access" in first
    assert first != second


def test_only_a_case_that_ran_under_the_sanitizer_passes(found: dict[str, Any]) -> None:
    assert found["imports under the sanitizer"] == ["first", "toy"]
    reports = {name: told[0] for name, told in found.items() if name.startswith("sanitizer, ")}
    assert reports == {
        "sanitizer, nothing ran, 0 errors": NOT_RUN,
        "sanitizer, nothing ran, 1 error": FAILED,
        "sanitizer, clean, 0 errors": PASSED,
        "sanitizer, clean, 1 error": FAILED,
        "sanitizer, own error, 0 errors": NOT_RUN,
        "sanitizer, own error, 1 error": NOT_RUN,
    }
    assert "Internal Sanitizer Error" in found["sanitizer, own error, 1 error"][1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_scheduler_ends(tmp_path: Path, number: int) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tests.unit.gate.test_scheduler import gate\n"
        "from builder.gate.processes.scheduler import terminate_as_interrupt, GateInterrupted\n"
        "terminate_as_interrupt()\n"
        f"try: gate(Path({str(tmp_path)!r}), 'ns::loop,ns::loop2', seconds=600)\n"
        "except GateInterrupted as stop: sys.exit(128 + stop.number)\n"
    )
    scheduler = subprocess.Popen([sys.executable, "-c", code])
    try:
        # The process of an op has written to its journal.
        wait_until(lambda: any("float32" in journal.read_text() for journal in tmp_path.glob("*/journal")), "a case")
        below = psutil.Process(scheduler.pid).children(recursive=True)
        assert len(below) >= 2
        os.kill(scheduler.pid, number)
        status = scheduler.wait(PATIENCE)
    finally:
        scheduler.kill()
        scheduler.wait()
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not any(map(is_running, below)), lambda: f"the end of {below}")


def test_the_fork_server_initialises_no_cuda(store: Path, tmp_path: Path) -> None:
    """Before a fork, one call that initialises CUDA is enough to make CUDA unusable in each check."""
    wheel = build_wheel(tmp_path, "sample_correct")
    python = make_environment(store, tmp_path / "environment", "2.11.0", "3.12", [wheel])
    driver = fake_driver(tmp_path)
    # Whether torch finds a GPU through NVML, and without it.
    find = "import torch; print(torch.cuda.is_available(), torch._C._cuda_getDeviceCount())"
    found = run(python, "-c", find, env={**driver.env, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    assert (found.out, len(driver.calls())) == ("True 0\n", 1), f"torch does not use the fake driver: {found.all}"
    driver.log.unlink()
    # A check for each way to call an op: directly, traced, on fake CUDA tensors, compiled, and on CUDA.
    checks = ["values", "opcheck", "fake", "export", "compile", "gpu-values"]
    libraries = {"libkernels": ["CPU", "CUDA"]}
    spec = Spec("sample_correct", ["sample_correct"], libraries=libraries, jobs=2, checks=checks)
    # Each check forks for it. To compile every other op too takes longer, and shows no more.
    only = '\nCASES = [each for each in CASES if each.op == "sample_correct::multiply"]\n'
    (one_op := tmp_path / "cases.py").write_text(cases("correct").read_text() + only)
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
