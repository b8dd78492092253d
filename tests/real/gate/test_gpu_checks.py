"""The logic of the GPU checks, with torch on the CPU and stand-ins for torch.cuda: correct ops pass.

tests/full/test_gpu_defects.py needs a GPU.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.gate.outcome import FAILED, NOT_RUN, PASSED
from tests.conftest import ROOT, run
from tests.fixtures import gate_env

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Verdict and reason of each check and op."""
    tmp_path = tmp_path_factory.mktemp("gpu")
    environment = gate_env.torch_environment(store, "2.11.0", "3.12", tmp_path / "log")
    program = Path(gate_env.__file__).with_name("gpu_checks_on_cpu.py")
    ran = run(environment.interpreter, program, ROOT)
    assert ran.code == 0, ran.all
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
